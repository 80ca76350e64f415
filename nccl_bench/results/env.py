"""What of a process's environment may be kept in a run: an allow-list, and no secret even there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"

_PREFIXES = ("NCCL_", "RCCL_", "TORCH_NCCL_", "UCX_", "UCC_", "FI_", "GLOO_", "SHARP_COLL_", "RDMAV_", "MLX5_")
"""Settings of NCCL, of its network plug-ins and of the libraries below them."""

_NAMES = """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING NVIDIA_VISIBLE_DEVICES
    HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TORCH_DISTRIBUTED_DEBUG TORCH_SHOW_CPP_STACKTRACES
    OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES MKL_NUM_THREADS WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE
    OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE PMI_SIZE MV2_COMM_WORLD_SIZE
"""

_SLURM = """
    JOB_ID JOBID STEP_ID STEPID CLUSTER_NAME JOB_PARTITION JOB_NODELIST NODELIST STEP_NODELIST JOB_NUM_NODES NNODES STEP_NUM_NODES
    NTASKS NPROCS STEP_NUM_TASKS NTASKS_PER_NODE TASKS_PER_NODE STEP_TASKS_PER_NODE CPUS_PER_TASK CPUS_ON_NODE JOB_CPUS_PER_NODE
    CPU_BIND CPU_BIND_TYPE CPU_BIND_LIST CPU_BIND_VERBOSE MEM_BIND MEM_BIND_TYPE THREADS_PER_CORE DISTRIBUTION GPUS GPUS_ON_NODE
    GPUS_PER_NODE GPUS_PER_TASK GPU_BIND JOB_GPUS STEP_GPUS MPI_TYPE TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN RESTART_COUNT
"""
"""After `SLURM_`: where and how the step runs; no user, account, working directory or job name."""

_SECRET_WORD = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|JWT|COOKIE|(?:^|_)(?:KEY|PASS|PWD|AUTH|SIG)(?:_|$)", re.IGNORECASE)
"""In a name. NCCL_IB_PKEY, a partition's number, is not one: there KEY is no word of its own."""

_SECRET_TEXT = re.compile(
    r"""[a-z][a-z0-9+.-]*://[^\s/@]*@                                # a URL with credentials
    | \bBearer\s | -----BEGIN\  | \beyJ[\w-]{8,}\.[\w-]{8,}          # headers, PEM, JSON web tokens
    | \b(?-i:AKIA|ASIA)(?-i:[0-9A-Z]{12,}) | \b(?-i:AIza)[\w-]{20,} # AWS access key ids, Google API keys
    | \b(?:hf|ghp|gho|ghu|ghs|github_pat|glpat|xox[abprs]|sk|pypi|nvapi|dckr_pat)[_-][\w-]{8,}   # tokens that say whose they are
    | (?:token|secret|passw(?:or)?d|credentials?|api_?key|access_?key|signature|sig|auth)=\S     # an assignment inside a value
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=([^,\s]*)")
_RUN = re.compile(r"[A-Za-z0-9+/=]{32,}")
_HEX_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+")

_ALLOWED = frozenset([*_NAMES.split(), *(f"SLURM_{name}" for name in _SLURM.split())])


def allowed_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the allow-list (CONTRACT.md section 3), sorted, values that look like secrets replaced."""
    return {name: redact_value(name, environ[name]) for name in sorted(environ) if is_allowed(name)}


def is_allowed(name: str) -> bool:
    """Whether a variable of this name may be kept."""
    return name in _ALLOWED or name.startswith(_PREFIXES)


def redact_value(name: str, value: str) -> str:
    """The value, or REDACTED where the variable's name or the value itself looks like a secret."""
    return REDACTED if _SECRET_WORD.search(name) or _looks_secret(value) else value


def redact_argument(text: str) -> str:
    """One argument of a command line or line of a configuration file without its secrets: NAME=VALUE is judged by its name too."""
    known = _ASSIGNMENT.sub(lambda match: f"{match[1]}={redact_value(match[1], match[2])}", text)
    return REDACTED if _looks_secret(known.replace(REDACTED, "")) else known


def redact(value: Any) -> Any:
    """`redact_argument` on every string inside a value made of dicts, lists and tuples."""
    match value:
        case str():
            return redact_argument(value)
        case dict():
            return {key: REDACTED if isinstance(item, str) and _SECRET_WORD.search(str(key)) else redact(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(redact(item) for item in value)
    return value


def _looks_secret(value: str) -> bool:
    return bool(_SECRET_TEXT.search(value)) or any(_random(run) for run in _RUN.findall(value))


def _random(run: str) -> bool:
    """Whether 32 characters or more in a row look drawn by lot: upper case, lower case and digits mixed, or hexadecimal.

    A path is no secret (its slashes come often); neither is a mask such as 0xffff...
    """
    if _HEX_NUMBER.fullmatch(run) or run.startswith("/") or run.count("/") > len(run) / 12:
        return False
    kinds = (any(map(str.isupper, run)), any(map(str.islower, run)), any(map(str.isdigit, run)))
    return all(kinds) or (kinds[2] and kinds.count(True) == 2 and re.fullmatch("[0-9a-fA-F]+", run) is not None)
