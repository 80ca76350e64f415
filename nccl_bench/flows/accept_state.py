"""What an acceptance keeps between its stages (accept.json), so that it can be judged by itself and go on after a kill."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from nccl_bench.errors import DataError, UsageError
from nccl_bench.flows.accept_run import EXCLUDED_AT_RESUME, Run
from nccl_bench.flows.accept_spec import AcceptSpec
from nccl_bench.flows.doctor import Diagnosis
from nccl_bench.flows.judged import FACTS_FILE, HOSTS_FILE
from nccl_bench.flows.pairs import PAIRS_FILE
from nccl_bench.records import Json
from nccl_bench.results.store import read_header


def keep_facts(run: Run) -> None:
    """accept.json: everything that is judged beside points and pairs."""
    diagnosis = run.diagnosis
    record = {
        "doctor": run.doctor,
        "inventory": [] if diagnosis is None else list(diagnosis.inventory),
        "serials": {} if diagnosis is None else {f"{host}/{device}": serial for (host, device), serial in diagnosis.serials.items()},
        "excluded": run.excluded, "not_run": run.not_run, "broken": run.broken, "counters": run.bad_counters,
        "counters_read": run.counters_read, "counters_missing": sorted(run.counters_missing),
        "rdma_bytes": run.rdma_bytes, "rdma_of": run.rdma_of, "has_rdma": has_rdma(run), "nic_of": run.nic_of, "stages": list(run.spec.stages),
        "min_hosts": run.spec.min_hosts, "hosts": run.hosts_at_start, "oversubscription": run.spec.oversubscription, "pairs_file": PAIRS_FILE,
        "judged_at": time.time(), "finished": run.finished, "attempt": run.attempt, "spares": run.spares_at_start,
        "spares_left": list(dict.fromkeys(run.bench.values())), "replaced": run.replaced, "baseline": list(run.spec.baseline),
        "reference": run.spec.reference, "load": run.spec.load, "groups": _groups(run), "n_pair_worlds": run.n_pair_worlds,
        "load_rates": run.load_rates, "budget_s": run.spec.budget_s, "more": [list(one) for one in run.spec.more], "case_s": run.plan.case_s,
    }  # fmt: skip
    run.writer.write_file(FACTS_FILE, record)


def keep_hosts(run: Run) -> None:
    """hosts.json, once doctor has read them."""
    if run.diagnosis is not None:
        run.writer.write_file(HOSTS_FILE, {"hosts": list(run.diagnosis.hosts), "silent": list(run.diagnosis.silent_hosts)})


def has_rdma(run: Run) -> bool:
    """Whether any host has an RDMA port."""
    return any(host.get("ports") for host in (run.diagnosis.hosts if run.diagnosis is not None else ()))


def _groups(run: Run) -> Json | None:
    known = run.groups(run.hosts_at_start)
    return None if known is None else {"of": dict(zip(run.hosts_at_start, known.of, strict=True)), "source": known.source}


# ---- resuming


def recorded(path: Path) -> tuple[AcceptSpec, Json]:
    """The spec and accept.json of a run that was cut off. Raises DataError where it is none, UsageError where it came to its end."""
    header = read_header(path / "run.json")
    spec = header.spec.get("accept")
    if not isinstance(spec, dict):
        raise DataError(f"{path}: no acceptance", "--resume takes a directory that nccl-bench accept wrote")
    facts: Json = {}
    if (path / FACTS_FILE).exists():
        try:
            facts = json.loads((path / FACTS_FILE).read_text())
        except (OSError, ValueError) as err:
            raise DataError(f"{path / FACTS_FILE} cannot be read: {err}") from err
    wanted = AcceptSpec.from_json(spec)
    if not [stage for stage in wanted.stages if stage not in facts.get("finished", {})]:
        raise UsageError(f"{path}: every stage is finished, nothing is left to resume", f"judge it again with: nccl-bench accept --run {path}")
    return wanted, facts


def restore(run: Run, facts: Json, known_ranks: tuple[Json, ...]) -> list[str]:
    """Put the state of accept.json back; what is said of it. Raises UsageError where other hosts are here than were in the run."""
    joins = run.council.joins
    before: dict[str, list[int]] = {}
    for one in known_ranks:
        before.setdefault(str(one["host"]), []).append(int(one["rank"]))
    now: dict[str, list[int]] = {}
    for rank in sorted(joins):
        now.setdefault(str(joins[rank]["host"]), []).append(rank)
    _same_hosts(before, now)
    run.number = {rank: number for host, ranks in now.items() for rank, number in zip(ranks, before[host], strict=True)}
    _put_back(run, facts)
    gone = {one["host"] for one in run.excluded}
    local = {rank: str(joins[rank]["host"]) for rank in sorted(joins) if str(joins[rank]["host"]) in run.hosts_at_start}
    bench = set(run.bench.values()) if "hosts" not in facts else set(facts.get("spares_left", ()))
    run.bench = {rank: host for rank, host in local.items() if host in bench and host not in gone}
    run.members = {rank: host for rank, host in local.items() if host not in bench and host not in gone}
    said = [f"{host} is left out, as before" for host in now if host in gone]
    for host in run.hosts_at_start:
        if host not in now and host not in gone:
            run.excluded.append({"host": host, "stage": EXCLUDED_AT_RESUME, "reason": "did not come back"})
            said.append(f"{host} did not come back: the others go on")
    return said


def _same_hosts(before: Mapping[str, list[int]], now: Mapping[str, list[int]]) -> None:
    strange = [host for host in now if host not in before]
    if strange:
        raise UsageError(
            f"--resume: {', '.join(strange[:8])} took no part in that run, which had {', '.join(list(before)[:8])}",
            "start it on the same hosts (srun --nodelist=...), or a new acceptance without --resume",
        )
    for host, ranks in now.items():
        if len(ranks) != len(before[host]):
            raise UsageError(f"--resume: {host} had {len(before[host])} ranks in that run and has {len(ranks)} now", "start as many as before")


def _put_back(run: Run, facts: Json) -> None:
    if "hosts" not in facts:
        run.attempt = 2
        return
    values: Json = dict(facts)
    run.attempt = int(values.get("attempt", 1)) + 1
    run.finished = dict(values.get("finished", {}))
    done = set(run.finished)
    run.doctor, run.nic_of, run.rdma_bytes = list(values["doctor"]), dict(values["nic_of"]), values["rdma_bytes"]
    run.excluded, run.replaced = list(values["excluded"]), list(values.get("replaced", ()))
    run.not_run, run.broken, run.bad_counters = ([one for one in values[name] if one["stage"] in done] for name in ("not_run", "broken", "counters"))
    run.load_rates = list(values.get("load_rates", ()))
    run.rdma_of = dict(values.get("rdma_of", {}))
    run.counters_missing = set(values.get("counters_missing", ()))
    run.counters_read, run.n_pair_worlds = bool(values["counters_read"]), int(values.get("n_pair_worlds", 0))
    run.hosts_at_start, run.spares_at_start = list(values["hosts"]), list(values.get("spares", ()))
    run.backend, run.shared_gpu = run.writer.header.backend, run.writer.header.shared_gpu
    try:
        record = json.loads((run.writer.path / HOSTS_FILE).read_text())
    except (OSError, ValueError):
        run.finished.pop("doctor", None)  # it is read again
        return
    serials = {(key.rpartition("/")[0], key.rpartition("/")[2]): value for key, value in values["serials"].items()}
    run.diagnosis = Diagnosis(
        results=(), inventory=tuple(values["inventory"]), silent_hosts=tuple(record["silent"]), hosts=tuple(record["hosts"]), exit_code=0, why="",
        serials=serials,
    )  # fmt: skip
