"""The Kubernetes manifests: fields that Kubeflow's own models know, and commands that run as they stand where its variables are set."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from testbed import HOSTS, ROOT, header, hosts, needs, needs_hosts

MANIFESTS = ROOT / "docs" / "kubernetes"
SHORT = "all_reduce --backend gloo -b 1K -e 4K --budget 0.05 --no-progress"


def test_nothing_is_set_but_what_torchrun_mpi_and_nccl_need() -> None:
    for path in MANIFESTS.glob("*.yaml"):
        text = path.read_text()
        assert "env:" not in text, "the launcher says who is who; what a site needs is the site's"
        assert "NCCL_" not in re.sub(r"#.*", "", text)
        assert re.search(r"nccl-bench,? sweep", text)


@needs_hosts
def test_the_command_of_the_pytorchjob_runs_with_the_variables_that_the_operator_sets(tmp_path: Path) -> None:
    """As of training-operator 1.9: PET_* for torchrun, and the pod's own RANK and WORLD_SIZE, which torchrun replaces."""
    pytest.importorskip("torch")
    (command,) = re.findall(r"command: \[(torchrun, .*)\]", (MANIFESTS / "pytorchjob.yaml").read_text())
    argv = command.replace("/results/run", str(tmp_path / "run")).split(", ")
    with hosts("nccl-master-0", "h2") as made:
        started = []
        for number, host in enumerate(made.names):
            where = {"MASTER_ADDR": "nccl-master-0", "MASTER_PORT": "23456"}
            pod = {**where, **{f"PET_{name}": value for name, value in where.items()}, "RANK": str(number), "WORLD_SIZE": "4"}
            env = {**pod, "PET_NNODES": "2", "PET_NODE_RANK": str(number), "PET_NPROC_PER_NODE": "2"}
            started.append(made.start(host, *argv, *SHORT.split(), env=env, cwd=tmp_path))
        texts = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], texts
    found = header(tmp_path / "run")
    assert (found["launcher"], found["n_ranks"], found["n_nodes"]) == ("torchrun", 4, 2)


@needs("mpirun.openmpi", package="openmpi-bin")
@needs_hosts
def test_the_launcher_of_the_mpijob_runs_with_the_operators_agent_and_hostfile(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, block = (MANIFESTS / "mpijob.yaml").read_text().split("- |\n", 1)
    script = textwrap.dedent(block.split("\n    Worker:")[0])
    script = script.replace("-np 16", "-np 4").replace("/results/run", f"{tmp_path / 'run'} {SHORT}")
    script = script.replace("mpirun ", "mpirun.openmpi -x PATH -x PYTHONPATH ")  # in a pod these come with the image
    agent, hostfile = tmp_path / "kubexec.sh", tmp_path / "hostfile"
    agent.write_text(f'#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\nexec {HOSTS} on "$POD_NAME" /bin/sh -c "$*"\n')
    agent.chmod(0o755)
    hostfile.write_text("h1 slots=2\nh2 slots=2\n")
    with hosts("h1", "h2") as made:
        mca = {"OMPI_MCA_plm_rsh_agent": str(agent), "OMPI_MCA_orte_default_hostfile": str(hostfile)}
        done = made.run("head", "/bin/sh", "-c", script, env=mca, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = header(tmp_path / "run")
    assert (found["launcher"], found["n_ranks"], found["n_nodes"]) == ("openmpi", 4, 2)


CHECK = """
import sys
import yaml
from kubeflow.training import models
from kubeflow.training.api_client import ApiClient

def lost(given, kept, path):
    # Names of fields of a manifest that its model did not take over.
    if isinstance(given, dict):
        return [name for key, value in given.items() for name in
                ([f"{path}.{key}"] if not isinstance(kept, dict) or key not in kept else lost(value, kept[key], f"{path}.{key}"))]
    if isinstance(given, list):
        return [name for number, value in enumerate(given) for name in lost(value, kept[number], f"{path}[{number}]")]
    return [] if str(given) == str(kept) else [f"{path}: {given!r} became {kept!r}"]

class Response:
    def __init__(self, value):
        import json
        self.data = json.dumps(value)

client = ApiClient()
for name, kind in (("pytorchjob.yaml", "KubeflowOrgV1PyTorchJob"), ("mpijob.yaml", "KubeflowOrgV1MPIJob")):
    given = yaml.safe_load(open(f"{sys.argv[1]}/{name}"))
    job = client.deserialize(Response(given), kind)
    kept = client.sanitize_for_serialization(job)
    missing = lost(given, kept, kind)
    print(name, type(job).__name__, missing)
    if missing:
        sys.exit(1)
"""
"""Through the models and back: what is not there any more, the model does not know."""


@pytest.mark.slow
def test_every_field_is_one_of_kubeflows_models(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "kubeflow-training==1.9.4", "pyyaml"]
    made = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=280)
    if made.returncode:
        pytest.skip(f"kubeflow-training cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    done = subprocess.run([str(venv / "bin" / "python"), "-c", CHECK, str(MANIFESTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "KubeflowOrgV1PyTorchJob []" in done.stdout
    assert "KubeflowOrgV1MPIJob []" in done.stdout
