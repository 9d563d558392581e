"""What can be checked of the recipes without running them: they parse, and the settings that matter agree."""

import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.processes import CLUSTER, environment

KUBERNETES = CLUSTER / "kubernetes"
SHELL = sorted([*CLUSTER.rglob("*.sh"), *CLUSTER.rglob("*.sbatch")])
PYTHON = sorted(CLUSTER.rglob("*.py"))


def documents(name: str) -> dict[str, Any]:
    return {d["kind"]: d for d in yaml.safe_load_all((KUBERNETES / name).read_text())}


@pytest.fixture
def cluster() -> dict[str, Any]:
    found: dict[str, Any] = documents("cluster.yaml")["DaskCluster"]
    return found


def options(arguments: list[str]) -> dict[str, str]:
    return {name: value for name, value in pairwise(arguments) if name.startswith("--")}


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True, timeout=20)


@pytest.mark.parametrize("script", PYTHON, ids=lambda path: path.name)
def test_python_scripts_show_help(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, "--help"], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith("Usage:"), done.stderr


@pytest.mark.parametrize("folder", [p for p in sorted(CLUSTER.iterdir()) if p.is_dir()], ids=lambda path: path.name)
def test_readmes_start_with_the_command(folder: Path) -> None:
    first = (folder / "README.md").read_text().split("```console\n")[0]
    assert first.count("\n\n") == 1 and first.startswith("# ")  # the title, then the command
    assert f"({folder.name})" in (CLUSTER / "README.md").read_text()


def test_kubernetes_worker_has_one_thread_and_the_memory_of_its_container(cluster: dict[str, Any]) -> None:
    assert cluster["apiVersion"] == "kubernetes.dask.org/v1"
    container = cluster["spec"]["worker"]["spec"]["containers"][0]
    given = options(container["args"])
    assert container["args"][:2] == ["dask", "worker"]
    assert given["--nthreads"] == given["--nworkers"] == "1"
    assert given["--name"] == "$(DASK_WORKER_NAME)"  # by which the operator retires it
    variables = {v["name"]: v for v in container["env"]}
    memory = variables[given["--memory-limit"].removeprefix("$(").removesuffix(")")]
    assert memory["valueFrom"] == {"resourceFieldRef": {"resource": "limits.memory"}}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["cpu"] == "1"
    assert given["--preload"] == "dkrr.preload"


def test_kubernetes_arguments_are_strings(cluster: dict[str, Any]) -> None:
    pods = [cluster["spec"][part]["spec"] for part in ("worker", "scheduler")]
    for container in [c for pod in pods for c in pod["containers"]]:
        assert all(isinstance(a, str) for a in container["args"])
        assert all(isinstance(v["value"], str) for v in container.get("env", []) if "value" in v)


def test_kubernetes_service_leads_to_the_scheduler(cluster: dict[str, Any]) -> None:
    scheduler, name = cluster["spec"]["scheduler"], cluster["metadata"]["name"]
    ports = {p["name"]: p["containerPort"] for p in scheduler["spec"]["containers"][0]["ports"]}
    given = options(scheduler["spec"]["containers"][0]["args"])
    assert ports == {"tcp-comm": int(given["--port"]), "http-dashboard": int(given["--dashboard-address"][1:])}
    assert {p["targetPort"]: p["port"] for p in scheduler["service"]["ports"]} == ports
    selector = {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    assert scheduler["service"]["selector"] == selector
    script = documents("fit.yaml")["Job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert f"tcp://{name}-scheduler:8786" in script


def test_kubernetes_workers_and_fit_share_one_volume(cluster: dict[str, Any]) -> None:
    claim = documents("cluster.yaml")["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in (cluster["spec"]["worker"]["spec"], documents("fit.yaml")["Job"]["spec"]["template"]["spec"]):
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/shared"] == "shared" and set(mounts.values()) == set(volumes)
        assert pod["containers"][0]["image"] == cluster["spec"]["scheduler"]["spec"]["containers"][0]["image"]


def test_kubernetes_job_calls_dkrr_with_options_that_exist(cluster: dict[str, Any]) -> None:
    import dkrr.cli

    script = documents("fit.yaml")["Job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    subprocess.run(["sh", "-n"], input=script.encode(), check=True, timeout=20)
    known = {name for parameter in dkrr.cli.dkrr.commands["fit"].params for name in parameter.opts}
    call = script.replace("\\\n", " ").split("dkrr fit", 1)[1].split()
    assert {word for word in call if word.startswith("--")} <= known
    assert f"--workers {cluster['spec']['worker']['replicas']} " in script


def test_cluster_from_python_has_no_shared_volume() -> None:
    spec = runpy.run_path(str(KUBERNETES / "fit_kubernetes.py"))["cluster_spec"](7)["spec"]["worker"]
    assert spec["replicas"] == 7
    assert [v["name"] for v in spec["spec"]["volumes"]] == ["scratch"]
    assert [m["name"] for m in spec["spec"]["containers"][0]["volumeMounts"]] == ["scratch"]


def test_image_holds_what_the_manifests_use() -> None:
    lines = (KUBERNETES / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:] for line in lines if line.startswith("COPY")]
    for *sources, _ in copied:
        assert all((CLUSTER.parent / source).exists() for source in sources)
    assert ["cluster/wait_for_workers.py", "/opt/dkrr/"] in copied
    assert "/opt/dkrr/wait_for_workers.py" in (KUBERNETES / "fit.yaml").read_text()
