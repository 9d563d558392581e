"""Fit with the Dask cluster of cluster.yaml, started from Python (dask-kubernetes) and deleted at the end."""

import importlib
import sys
from pathlib import Path
from typing import Any

import click
import yaml

MANIFEST = Path(__file__).resolve().parent / "cluster.yaml"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--x", "x_path", required=True, metavar="URL", help="Training rows, such as s3://bucket/X.zarr.")
@click.option("--y", "y_path", required=True, metavar="URL", help="Targets.")
@click.option("--store", required=True, metavar="URL", help="Store that this machine and the workers reach.")
@click.option("--model", "model_path", required=True, metavar="PATH", help="Where to save the model.")
@click.option("--workers", type=click.IntRange(1), default=4, help="Workers of one thread.")
@click.option("--namespace", help="Kubernetes namespace.")
@click.option("--kernel", default="rbf", help="Kernel.")
@click.option("--gamma", type=float, help="γ of the kernel.")
@click.option("--alpha", type=float, default=1.0, help="λ.")
def main(
    x_path: str, y_path: str, model_path: str, store: str, workers: int, namespace: str | None, **kernel: Any
) -> None:
    """Fit with the Dask cluster of cluster.yaml; the same command resumes with the same --store."""
    try:
        operator = importlib.import_module("dask_kubernetes.operator")
    except ImportError as error:
        raise click.ClickException(f"this needs dask-kubernetes: pip install 'dkrr[kubernetes]' ({error})") from error
    from distributed import Client

    import dkrr

    with (
        operator.KubeCluster(custom_cluster_spec=cluster_spec(workers), namespace=namespace) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        model = dkrr.KernelRidge(**kernel, store=store, progress=True).fit(x_path, y_path)
        dkrr.save(model, model_path)
    click.echo(f"{model.plan_}\nresidual {model.solve_result_.residual:.1e}; the model is in {model_path}")


def cluster_spec(workers: int) -> dict[str, Any]:
    """DaskCluster of cluster.yaml with this number of workers; without the shared volume, unreadable from here."""
    documents = yaml.safe_load_all(MANIFEST.read_text())
    cluster: dict[str, Any] = next(d for d in documents if d["kind"] == "DaskCluster")
    worker = cluster["spec"]["worker"]
    worker["replicas"] = workers
    worker["spec"]["volumes"] = [v for v in worker["spec"]["volumes"] if v["name"] != "shared"]
    container = worker["spec"]["containers"][0]
    container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] != "shared"]
    return cluster


if __name__ == "__main__":
    sys.exit(main())
