"""What can be checked of the recipes without running them: they parse, and the settings that matter agree."""

import runpy
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml

import dkrr.cli
from tests.nightly.cluster.recipes import run
from tests.processes import CLUSTER

KUBERNETES = CLUSTER / "kubernetes"
SCRIPTS = [path for end in ("sh", "sbatch", "py") for path in sorted(CLUSTER.rglob(f"*.{end}"))]
COMPOSE = yaml.safe_load((CLUSTER / "compose" / "compose.yaml").read_text())


def documents(name):
    return {d["kind"]: d for d in yaml.safe_load_all((KUBERNETES / name).read_text())}


PARTS = documents("cluster.yaml")["DaskCluster"]["spec"]
POD = documents("fit.yaml")["Job"]["spec"]["template"]["spec"]


def options(arguments):
    return {name: value for name, value in pairwise(arguments) if name.startswith("--")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_those_of_python_show_help(script):
    done = run(sys.executable, script, "--help") if script.suffix == ".py" else run("bash", "-n", script)
    assert done.returncode == 0 and done.stdout.startswith("Usage:" * (script.suffix == ".py")), done.stderr


def test_kubernetes_workers_have_one_thread_and_the_memory_of_their_containers():
    container = PARTS["worker"]["spec"]["containers"][0]
    given = options(container["args"])
    assert container["args"][:2] == ["dask", "worker"] and given["--preload"] == "dkrr.preload"
    assert given["--nthreads"] == given["--nworkers"] == container["resources"]["limits"]["cpu"] == "1"
    assert given["--name"] == "$(DASK_WORKER_NAME)"  # by which the operator retires it
    memory = {f"$({v['name']})": v.get("valueFrom") for v in container["env"]}[given["--memory-limit"]]
    assert memory == {"resourceFieldRef": {"resource": "limits.memory"}}
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_kubernetes_service_leads_to_the_scheduler_and_all_share_one_image_and_volume():
    manifest, (scheduler,) = documents("cluster.yaml"), PARTS["scheduler"]["spec"]["containers"]
    name, given = manifest["DaskCluster"]["metadata"]["name"], options(scheduler["args"])
    ports = {p["name"]: p["containerPort"] for p in scheduler["ports"]}
    assert ports == {"tcp-comm": int(given["--port"]), "http-dashboard": int(given["--dashboard-address"][1:])}
    service = PARTS["scheduler"]["service"]
    assert {p["targetPort"]: p["port"] for p in service["ports"]} == ports
    assert service["selector"] == {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    assert f"tcp://{name}-scheduler:8786" in POD["containers"][0]["args"][0]
    claim = manifest["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in (PARTS["worker"]["spec"], POD):
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mounts = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
        assert mounts["/shared"] == "shared" and set(mounts.values()) == set(volumes)
        assert pod["containers"][0]["image"] == scheduler["image"]
    from_python = runpy.run_path(str(KUBERNETES / "fit_kubernetes.py"))["cluster_spec"](7)["spec"]["worker"]
    assert from_python["replicas"] == 7 and [v["name"] for v in from_python["spec"]["volumes"]] == ["scratch"]


def test_the_image_holds_what_the_manifests_use():
    lines = (KUBERNETES / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:] for line in lines if line.startswith("COPY")]
    assert all((CLUSTER.parent / source).exists() for *sources, _ in copied for source in sources)
    assert ["cluster/wait_for_workers.py", "/opt/dkrr/"] in copied
    (installed,) = [line.split() for line in lines if line.startswith("RUN pip install")]
    assert '".[cloud]"' in installed, "for stores in buckets"
    assert "/opt/dkrr/wait_for_workers.py" in POD["containers"][0]["args"][0]


@pytest.mark.parametrize("name", ["cluster.yaml", "fit.yaml"])
def test_kubernetes_knows_every_field(name):
    validate = pytest.importorskip("kubernetes_validate")
    parts = documents(name)
    if "DaskCluster" in parts:  # its definition is the operator's; its parts are Kubernetes' own
        core = {"apiVersion": "v1", "metadata": parts.pop("DaskCluster")["metadata"]}
        assert set(PARTS) == {"worker", "scheduler"} and set(PARTS["worker"]) == {"replicas", "spec"}
        parts |= {part: {**core, "kind": "Pod", "spec": PARTS[part]["spec"]} for part in PARTS}
        parts |= {"service": {**core, "kind": "Service", "spec": PARTS["scheduler"]["service"]}}
    for part in parts.values():
        validate.validate(part, validate.latest_version(), strict=True)


def test_compose_workers_have_the_memory_of_their_containers_and_a_closed_network():
    worker = COMPOSE["services"]["worker"]
    given = options(worker["command"])
    assert worker["command"][:3] == ["dask", "worker", "tcp://scheduler:8786"]
    assert (given["--nthreads"], given["--preload"]) == ("1", "dkrr.preload")
    assert given["--memory-limit"] == worker["mem_limit"] == "${DKRR_WORKER_MEMORY:-4GB}"
    shared = COMPOSE["x-container"]
    assert all(service.items() >= shared.items() for service in COMPOSE["services"].values())
    assert COMPOSE["networks"]["cluster"] == {"internal": True}
    context = (CLUSTER / "compose" / shared["build"]["context"]).resolve()
    assert context == CLUSTER.parent and (context / shared["build"]["dockerfile"]).exists()


@pytest.mark.parametrize(
    ("script", "workers", "replicas"),
    [
        (POD["containers"][0]["args"][0], PARTS["worker"]["replicas"], None),
        (COMPOSE["services"]["fit"]["command"][2], "${DKRR_WORKERS:-2}", COMPOSE["services"]["worker"]["scale"]),
    ],
    ids=["kubernetes", "compose"],
)
def test_the_recipes_call_dkrr_with_options_that_exist(script, workers, replicas):
    script = script.replace("${DKRR_OPTIONS:---kernel rbf}", "--kernel rbf")
    subprocess.run(["sh", "-n"], input=script.encode(), check=True, timeout=20)
    known = {name for parameter in dkrr.cli.dkrr.commands["fit"].params for name in parameter.opts}
    call = script.replace("\\\n", " ").split("dkrr fit", 1)[1].split()
    assert {word for word in call if word.startswith("--")} <= known
    assert f"--workers {workers} " in script and replicas in (None, workers)
