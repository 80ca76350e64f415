"""results/env.py: settings are kept, secrets are not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_bench.records import RunHeader
from nccl_bench.results.env import REDACTED, allowed_env, redact_argument, redact_value
from nccl_bench.results.store import create_run

SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz0123",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYaDExampleSessionTokenValue",
    "GITHUB_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "SLURM_JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl",
    "KUBECONFIG": "/home/alice/.kube/config",
    "USER": "alice",
    "SLURM_JOB_USER": "alice",
    "SLURM_JOB_ACCOUNT": "project-x",
    "SLURM_SUBMIT_DIR": "/home/alice/secret-project",
    "SLURM_JOB_NAME": "alice-secret-project",
    "PATH": "/home/alice/bin",
    "SSH_AUTH_SOCK": "/run/user/1000/ssh",
    "NCCL_REPORT_TOKEN": "letmein",
    "NCCL_PROXY_URL": "http://alice:hunter2@proxy.example:8080",
    "NCCL_INSPECTOR_UPLOAD": "https://store.example/put?sig=abcDEF123&x=1",
    "UCX_REGISTRY_PASSWORD": "hunter2",
    "FI_AUTH_HEADER": "Bearer abcdef",
    "NCCL_PLUGIN_CONFIG": "endpoint=a;password=hunter2",
    "NCCL_SOMETHING": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "NCCL_OTHER": "a3f5c9d2e8b7416052f9ae34cd178b60",
    "TORCH_NCCL_AUTH": "hunter2",
}
SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_PKEY": "1",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1",
    "NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml",
    "NCCL_NET_PLUGIN": "/usr/local/lib/x86_64-linux-gnu/libnccl-net-ofi.so",
    "NCCL_TUNER_CONFIG_PATH": "/usr/local/gib/configs/tuner_config_a3u.txtpb",
    "NCCL_COMM_ID": "10.0.0.1:29500",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "UCX_TLS": "rc,cuda_copy,cuda_ipc",
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "8",
    "CUDA_VISIBLE_DEVICES": "GPU-8a56a4bc-e184-a047-2620-be19fdf913d5,MIG-0f5a2b6c-1111-5222-8333-444455556666",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu-h100-[001-032],gpu-b200-[01-18]",
    "SLURM_CPU_BIND_LIST": "0x0000FFFF0000FFFF0000FFFF0000FFFF",
    "WORLD_SIZE": "16",
}


def test_settings_are_kept_as_they_are() -> None:
    assert allowed_env(SETTINGS) == SETTINGS


def test_no_secret_value_is_kept_whatever_its_variable_is_called() -> None:
    kept = allowed_env({**SECRETS, **SETTINGS})
    text = json.dumps(kept)

    for value in ("hunter2", "letmein", "alice", "wJalrXUtnFEMI", *SECRETS.values()):
        assert value not in text


def test_an_allowed_variable_that_holds_a_secret_says_that_it_was_there() -> None:
    assert allowed_env(SECRETS)["NCCL_REPORT_TOKEN"] == REDACTED


def test_names_off_the_list_are_left_out_whatever_they_hold() -> None:
    assert allowed_env({"HF_TOKEN": "x", "LD_LIBRARY_PATH": "/lib", "SLURM_UNHEARD_OF": "1", "NOT_NCCL_X": "1"}) == {}


@pytest.mark.parametrize(
    "text, kept",
    [
        ("--variant=ring:NCCL_ALGO=Ring,NCCL_X_TOKEN=abc", f"--variant=ring:NCCL_ALGO=Ring,NCCL_X_TOKEN={REDACTED}"),
        ("/etc/nccl.conf: NCCL_IB_HCA=mlx5", "/etc/nccl.conf: NCCL_IB_HCA=mlx5"),
        ("http://bob:pw@host/", REDACTED),
        ("-b", "-b"),
    ],
)
def test_an_argument_loses_only_its_secret(text: str, kept: str) -> None:
    assert redact_argument(text) == kept


def test_nothing_a_caller_puts_into_the_header_leaks_to_disk(tmp_path: Path) -> None:
    """The store is the last door: it holds even where a whole environment was passed."""
    argv = ("nccl-bench", "sweep", "--variant", "x:NCCL_PROXY=http://bob:hunter2@p")
    header = RunHeader(
        tool="t", argv=argv, started_at="2026-12-01T10:15:02Z", launcher=None, backend=None, n_ranks=1, n_nodes=1,
        env={**SECRETS, **SETTINGS}, nccl_conf=("f: NCCL_PASSWORD=hunter2",),
        spec={"variants": [{"name": "x", "env": {"NCCL_REPORT_TOKEN": "letmein"}}]},
    )  # fmt: skip
    writer = create_run(tmp_path / "r", header)
    writer.finish(datetime(2026, 12, 1, tzinfo=UTC), 0)
    text = (tmp_path / "r" / "run.json").read_text()

    for value in ("hunter2", "letmein", "alice", *SECRETS.values()):
        assert value not in text
    assert '"NCCL_DEBUG": "INFO"' in text


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_kept_is_always_a_part_of_what_was_there(environ: dict[str, str]) -> None:
    for name, value in allowed_env(environ).items():
        assert value in (environ[name], REDACTED)


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"[a-z]{3,8}://[a-z]{1,8}:[a-zA-Z0-9]{1,20}@[a-z]{1,12}(:[0-9]{2,5})?(/[a-z]*)?", fullmatch=True))
def test_a_url_with_credentials_is_never_kept(url: str) -> None:
    assert redact_value("NCCL_ANY", f"prefix {url}") == REDACTED
