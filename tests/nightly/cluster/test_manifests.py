"""What can be checked of the recipes without running them: they parse, and the settings that matter agree."""

import runpy
import shutil
import subprocess
import sys
from itertools import pairwise

import dask.utils
import pytest
import yaml

import dkrr.cli
from tests.nightly.cluster.recipes import run
from tests.processes import CLUSTER

KUBERNETES = CLUSTER / "kubernetes"
SHELL = sorted([*CLUSTER.rglob("*.sh"), *CLUSTER.rglob("*.sbatch")])
PYTHON = sorted(CLUSTER.rglob("*.py"))


def documents(name):
    return {d["kind"]: d for d in yaml.safe_load_all((KUBERNETES / name).read_text())}


@pytest.fixture
def cluster():
    return documents("cluster.yaml")["DaskCluster"]


def job_script():
    return documents("fit.yaml")["Job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]


def options(arguments):
    return {name: value for name, value in pairwise(arguments) if name.startswith("--")}


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_shell_scripts_parse(script):
    assert run("bash", "-n", script).returncode == 0


@pytest.mark.parametrize("script", PYTHON, ids=lambda path: path.name)
def test_python_scripts_show_help(script):
    done = run(sys.executable, script, "--help")
    assert done.returncode == 0 and done.stdout.startswith("Usage:"), done.stderr


@pytest.mark.parametrize("folder", [p for p in sorted(CLUSTER.iterdir()) if p.is_dir()], ids=lambda path: path.name)
def test_readmes_start_with_the_command(folder):
    first = (folder / "README.md").read_text().split("```console\n")[0]
    assert first.count("\n\n") == 1 and first.startswith("# ")  # the title, then the command
    assert f"({folder.name})" in (CLUSTER / "README.md").read_text()


def test_kubernetes_worker_has_one_thread_and_the_memory_of_its_container(cluster):
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


def test_kubernetes_service_leads_to_the_scheduler(cluster):
    scheduler, name = cluster["spec"]["scheduler"], cluster["metadata"]["name"]
    ports = {p["name"]: p["containerPort"] for p in scheduler["spec"]["containers"][0]["ports"]}
    given = options(scheduler["spec"]["containers"][0]["args"])
    assert ports == {"tcp-comm": int(given["--port"]), "http-dashboard": int(given["--dashboard-address"][1:])}
    assert {p["targetPort"]: p["port"] for p in scheduler["service"]["ports"]} == ports
    selector = {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    assert scheduler["service"]["selector"] == selector
    assert f"tcp://{name}-scheduler:8786" in job_script()


def test_kubernetes_workers_and_fit_share_one_volume(cluster):
    claim = documents("cluster.yaml")["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in (cluster["spec"]["worker"]["spec"], documents("fit.yaml")["Job"]["spec"]["template"]["spec"]):
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/shared"] == "shared" and set(mounts.values()) == set(volumes)
        assert pod["containers"][0]["image"] == cluster["spec"]["scheduler"]["spec"]["containers"][0]["image"]


def test_cluster_from_python_has_no_shared_volume():
    spec = runpy.run_path(str(KUBERNETES / "fit_kubernetes.py"))["cluster_spec"](7)["spec"]["worker"]
    assert spec["replicas"] == 7
    assert [v["name"] for v in spec["spec"]["volumes"]] == ["scratch"]
    assert [m["name"] for m in spec["spec"]["containers"][0]["volumeMounts"]] == ["scratch"]


def test_image_holds_what_the_manifests_use():
    lines = (KUBERNETES / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:] for line in lines if line.startswith("COPY")]
    for *sources, _ in copied:
        assert all((CLUSTER.parent / source).exists() for source in sources)
    assert ["cluster/wait_for_workers.py", "/opt/dkrr/"] in copied
    assert "/opt/dkrr/wait_for_workers.py" in (KUBERNETES / "fit.yaml").read_text()


@pytest.mark.parametrize("name", ["cluster.yaml", "fit.yaml"])
def test_kubernetes_knows_every_field(name):
    validate = pytest.importorskip("kubernetes_validate")
    checked = []
    for document in yaml.safe_load_all((KUBERNETES / name).read_text()):
        # The definition of a DaskCluster is the operator's; its parts are Kubernetes' own.
        parts = [document]
        if document["kind"] == "DaskCluster":
            spec, core = document["spec"], {"apiVersion": "v1", "metadata": document["metadata"]}
            parts = [{**core, "kind": "Pod", "spec": spec[part]["spec"]} for part in ("worker", "scheduler")]
            parts.append({**core, "kind": "Service", "spec": spec["scheduler"]["service"]})
            assert set(spec) == {"worker", "scheduler"} and set(spec["worker"]) == {"replicas", "spec"}
        for part in parts:
            validate.validate(part, validate.latest_version(), strict=True)
            checked.append(part["kind"])
            with pytest.raises(validate.ValidationError):
                validate.validate(
                    {**part, "spec": {**part["spec"], "wrong": 1}}, validate.latest_version(), strict=True
                )
    assert checked == {"cluster.yaml": ["PersistentVolumeClaim", "Pod", "Pod", "Service"], "fit.yaml": ["Job"]}[name]


def services():
    return yaml.safe_load((CLUSTER / "compose" / "compose.yaml").read_text())["services"]


def test_compose_workers_have_the_memory_of_their_containers():
    worker = services()["worker"]
    given = options(worker["command"])
    assert worker["command"][:3] == ["dask", "worker", "tcp://scheduler:8786"]
    assert (given["--nthreads"], given["--preload"]) == ("1", "dkrr.preload")
    assert given["--memory-limit"] == worker["mem_limit"] == "${DKRR_WORKER_MEMORY:-4GB}"
    assert dask.utils.parse_bytes("4GB") < 4 * 2**30  # what Docker makes of it


def test_compose_services_share_image_folder_and_a_closed_network():
    document = yaml.safe_load((CLUSTER / "compose" / "compose.yaml").read_text())
    for service in document["services"].values():
        assert {name: service[name] for name in document["x-container"]} == document["x-container"]
    assert document["networks"]["cluster"] == {"internal": True}
    build = document["x-container"]["build"]
    context = (CLUSTER / "compose" / build["context"]).resolve()
    assert context == CLUSTER.parent and (context / build["dockerfile"]).exists()


@pytest.mark.parametrize("recipe", ["kubernetes", "compose"])
def test_the_recipes_call_dkrr_with_options_that_exist(cluster, recipe):
    if recipe == "kubernetes":
        script, workers = job_script(), cluster["spec"]["worker"]["replicas"]
    else:
        script, workers = services()["fit"]["command"][2], "${DKRR_WORKERS:-2}"
        assert services()["worker"]["scale"] == workers
    script = script.replace("${DKRR_OPTIONS:---kernel rbf}", "--kernel rbf")
    subprocess.run(["sh", "-n"], input=script.encode(), check=True, timeout=20)
    known = {name for parameter in dkrr.cli.dkrr.commands["fit"].params for name in parameter.opts}
    call = script.replace("\\\n", " ").split("dkrr fit", 1)[1].split()
    assert {word for word in call if word.startswith("--")} <= known
    assert f"--workers {workers} " in script


def test_compose_accepts_the_file():
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no docker compose")
    command = [docker, "compose", "-f", CLUSTER / "compose" / "compose.yaml", "config", "--quiet"]
    subprocess.run(command, check=True, timeout=60)
