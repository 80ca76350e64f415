"""Options that users of nccl-tests and rccl-tests type here out of habit: what to write instead.

nccl-tests 2.19.6 src/common.cu (`longopts`, the usage text); rccl-tests' own are from its README.
"""

from __future__ import annotations

from collections.abc import Sequence

_BATCHED = "operations are timed in batches anyway (ops_per_batch of each point); --clock graph or queued"
_DEVICE = "torch's collectives are measured, not the kernels of NCCL's device API: leave it out"
_LAYOUT = "one process a GPU here, use -g 8 (GPUs of this node), or start all ranks with srun, torchrun or mpirun"

_ROWS = (
    ("t", "nthreads", _LAYOUT),
    ("m", "agg_iters", _BATCHED),
    ("z", "blocking", "--regime isolated meets before every operation; streaming, the default, is -z 0"),
    ("G", "cudagraph", "--clock graph replays a CUDA graph; how many operations it holds is chosen by their length"),
    ("a", "average", "a time is always the maximum over ranks; the mean over ranks is kept beside it (--wide shows it)"),
    ("N", "run_cycles", "--duration SECONDS repeats the sweep and keeps every pass"),
    ("p", "parallel_init", "ranks are processes and start in parallel anyway: leave it out"),
    ("C", "report_cputime", "--clock graph,eager (or queued,eager) shows what the host pays for a call as dispatch overhead"),
    ("J", "output_file", "every run keeps points.jsonl and run.json (-O DIR); --json prints the points as they come"),
    ("S", "report_timestamps", "every point of points.jsonl has started_at"),
    ("M", "memory", "--dry-run says the memory that a sweep takes"),
    ("I", "per_iter_timing", "percentiles of the batches are in every point; --keep-batches keeps each batch"),
    ("K", "per_iter_skip", "-w warms up; every size is also warmed up until two batches agree"),
    ("x", "cta_policy", "set NCCL_CTA_POLICY in the environment, or --variant NAME:NCCL_CTA_POLICY=1 to measure it beside the default"),
    ("D", "device_implementation", _DEVICE),
    ("V", "device_cta_count", _DEVICE),
    ("y", "stream_null", "operations run on a stream of their own, as torch does it: leave it out"),
    ("u", "unalign", "buffers are aligned as torch aligns them: leave it out"),
    ("Y", "memory_type", "buffers are in device memory: leave it out"),
    ("F", "cache_flush", "buffers rotate through more than twice the L2 cache: leave it out"),
    ("E", "rotating_tensor", "buffers rotate anyway: leave it out"),
    ("q", "delay", "in place and out of place are cases of their own: --placement in, out or both"),
    ("A", None, "the table names the algorithm that ran, points.jsonl its protocol and channels too: leave it out"),
    ("s", None, "--duration SECONDS repeats the sweep and keeps every pass"),
    ("X", None, "nccl-bench export RUN --format csv|parquet|jsonl"),
    ("Z", "output_format", "nccl-bench export RUN --format csv|parquet|jsonl"),
)
_ANSWERS = {f"-{letter}": why for letter, _, why in _ROWS} | {f"--{long.replace('_', '-')}": why for _, long, why in _ROWS if long}
_SAME = {"--ngpus": "--nproc-per-node", "--datatype": "--dtype", "--local-register": "--register"}
"""nccl-tests' long names of options that are called otherwise here."""


def answer(option: str) -> str | None:
    """What to write instead of an option that nccl-tests or rccl-tests has and we have not; None for any other."""
    return _ANSWERS.get(option)


def normalise(argv: Sequence[str]) -> list[str]:
    """The arguments with `_` as `-` in names of long options, and nccl-tests' long names as ours; all after `--` as it is."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    return [_normal(word) for word in words[:end]] + words[end:]


def _normal(word: str) -> str:
    if not word.startswith("--") or word == "--":
        return word
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    return f"{_SAME.get(name, name)}{equals}{value}"
