"""Fit with workers in Slurm jobs (dask-jobqueue); the same command resumes where the last one stopped."""

import importlib
import sys
from pathlib import Path
from typing import Any

import click
import dask


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--x", "x_path", required=True, metavar="PATH", help="Training rows, such as /shared/X.zarr.")
@click.option("--y", "y_path", required=True, metavar="PATH", help="Targets.")
@click.option("--shared", required=True, type=click.Path(path_type=Path), help="Folder that all nodes share.")
@click.option("--jobs", type=click.IntRange(1), default=4, help="Slurm jobs.")
@click.option("--cores", type=click.IntRange(1), default=8, help="Cores of a job, each with a worker of one thread.")
@click.option("--memory", default="32GiB", help="Memory of a job; its workers share it equally.")
@click.option("--walltime", default="04:00:00", help="Time limit of a job; ended jobs are replaced.")
@click.option("--start-with", type=click.IntRange(1), default=1, help="Jobs to wait for before the start.")
@click.option("--queue", help="Slurm partition.")
@click.option("--account", help="Slurm account.")
@click.option("--interface", help="Network interface of scheduler and workers, such as ib0.")
@click.option("--scratch", default="${TMPDIR:-/tmp}", help="Folder on the nodes for temporary files of the workers.")
@click.option("--kernel", default="rbf", help="Kernel.")
@click.option("--gamma", type=float, help="γ of the kernel.")
@click.option("--alpha", type=float, default=1.0, help="λ.")
@click.option("--job-script", is_flag=True, help="Print the script of a job without submitting it.")
def main(x_path: str, y_path: str, shared: Path, start_with: int, job_script: bool, **options: Any) -> None:
    """Fit with workers in Slurm jobs.

    Writes SHARED/run.zarr (the run, which the same command resumes), SHARED/model.zarr and SHARED/logs.
    """
    shared = shared.absolute()
    dask.config.set({"distributed.scheduler.http.routes": []})
    jobs, estimator = options.pop("jobs"), {name: options.pop(name) for name in ("kernel", "gamma", "alpha")}
    with slurm_cluster(shared / "logs", **options) as cluster:
        if job_script:
            click.echo(cluster.job_script())
            return
        model_path = shared / "model.zarr"
        if model_path.exists():
            raise click.UsageError(f"{model_path} exists already; delete it or give another --shared")
        from distributed import Client

        import dkrr

        # Not scale(): a job that reaches its walltime is replaced.
        cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)
        with Client(cluster) as client:
            client.wait_for_workers(min(start_with, jobs) * options["cores"])
            model = dkrr.KernelRidge(**estimator, store=str(shared / "run.zarr"), progress=True)
            model.fit(x_path, y_path)
            dkrr.save(model, str(model_path))
    click.echo(f"{model.plan_}\nresidual {model.solve_result_.residual:.1e}; the model is in {model_path}")


def slurm_cluster(logs: Path, *, cores: int, scratch: str, **options: Any) -> Any:
    """A dask_jobqueue.SLURMCluster without jobs yet, for workers of one thread.

    Parameters
    ----------
    logs : Path
        Folder for the output of the jobs.
    cores : int
        Workers of a job.
    scratch : str
        Folder for the workers' own files.
    **options
        memory, walltime, queue, account, interface, as of SLURMCluster.
    """
    from distributed.security import Security

    try:
        jobqueue = importlib.import_module("dask_jobqueue")
    except ImportError as error:
        raise click.ClickException(f"this needs dask-jobqueue: pip install 'dkrr[slurm]' ({error})") from error
    logs.mkdir(parents=True, exist_ok=True)
    return jobqueue.SLURMCluster(
        cores=cores,
        processes=cores,
        local_directory=scratch,
        # Certificates of this run, for scheduler, workers and client: whoever reaches a scheduler without can run
        # programs as you. Workers find them in a folder that only you may enter.
        protocol="tls://",
        security=Security.temporary(),
        shared_temp_directory=str(logs.parent),
        log_directory=str(logs),
        job_name="dkrr-worker",
        job_script_prologue=["export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES='[]'"],  # pages know no certificates
        worker_extra_args=["--no-dashboard", "--preload", "dkrr.preload"],
        scheduler_options={"dashboard_address": ":0", "dashboard": False},
        **options,
    )


if __name__ == "__main__":
    sys.exit(main())
