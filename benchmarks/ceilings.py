"""Hold the ceilings against published results: which points lie above `line`, how healthy ones stand to `attainable`, what `expected` says.

    python benchmarks/ceilings.py published.json [--write nccl_bench/fabric/expected.json]

published.json: a list of results with the keys system, gpus, nodes, gpus_per_node, nic, collective, bytes, busbw_GBs, kind, algo,
source. A result whose system cannot be described with the known models, or whose NICs are not told, is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nccl_bench.collectives import find
from nccl_bench.errors import NcclBenchError
from nccl_bench.fabric import expected, ideal, spec
from nccl_bench.fabric.algorithms import ceiling_key
from nccl_bench.fabric.expected import Observation

# (words in the published system's name, GPUs, GPUs of an NVLink domain where hosts share one)
SYSTEMS = (
    ("p4d|p4de|A100 80GB|8x A100-SXM4|BM.GPU.B4|BM.GPU4|OCI A100|2x\\(4x A100\\)|3 nodes of 8", "A100-SXM"),
    ("3x A100 PCIe|2x A100 PCIe|NC96", "A100-PCIE"),
    ("A800", "A800-SXM"),
    ("H800", "H800-SXM"),
    ("2x H100 PCIe", "H100-PCIE"),
    ("H200|p5en", "H200-SXM"),
    ("GH200", "GH200"),
    ("GB200", "GB200"),
    ("GB300", "GB300"),
    ("H100", "H100-SXM"),
    ("B200", "B200"),
    ("B300", "B300"),
    ("MI300X", "MI300X"),
    ("MI325X", "MI325X"),
    ("MI355X", "MI355X"),
    ("V100", "V100-SXM"),
    ("L40S", "L40S"),
    ("2080 Ti", "RTX-2080Ti"),
)
NICS = (
    (r"(\d+)x(\d+)G EFA", "EFA"),
    (r"(\d+)x(\d+)G GPUDirect-TCPX", "TCPX"),
    (r"(\d+)x(\d+)G Slingshot", "Slingshot"),
    (r"(\d+)x(\d+)G .*(?:RoCE|gIB)|(\d+)x(\d+)G Pollara", "RoCE"),
    (r"(\d+)x(\d+)G", "IB"),
)
# What is no sign of a healthy system's reach: (words in system, note or source; collective or None; reason).
NOT_HEALTHY = (
    ("unhealthy", None, "its own note says so"),
    ("older stack", None, "a later run of the same machine type is 11 % faster"),
    ("nccl/issues/527", None, "thread asks why it is slow (the single node is kept)"),
    ("A3 High", None, "1.4x apart between two runs; host-based TCPX"),
    ("1x200G IB HDR used", None, "1 GiB by one of eight NICs between two ranks"),
    ("2x H100 PCIe with NVLink bridges", None, "half of the bridges fitted: 6 of 12 links"),
    ("3x A100 PCIe", None, "a pair and a third GPU: a question, not a system"),
    ("L40S", None, "a report of a slow network"),
    ("twenty racks", None, "job over a shared InfiniBand of unknown oversubscription"),
    ("two racks of 64", "alltoall", "crosses racks over an unknown network"),
    ("10-node HGX H100", "sendrecv", "ring shift at half of one NIC: a question"),
    ("second user in thread", None, "asks why 8 nodes are slow"),
    ("issues/1368", "all_reduce", "thread asks why the tree is slow"),
)
STAS = "https://github.com/stas00/ml-engineering/blob/744d01e1/network/README.md"
COREWEAVE = "https://github.com/coreweave/nccl-tests/blob/cb865533/README.md"
SUPERBENCH = "https://github.com/microsoft/superbenchmark tests/data/"
TOGETHER = "https://github.com/togethercomputer/together-nccl-tests reports of 2026"
NVCRE = "https://github.com/NVIDIA/cluster-readiness-engine docs v0.13, report of AWS"
# Figures of reports that are not in the file of results: (gpus, nics, nodes, collective, algorithm, busbw, source, where).
REPORTS = (
    ("8xH200-SXM", None, 1, "all_reduce", "ring", 367.0, "8x H200", STAS),
    ("8xH200-SXM", None, 1, "all_gather", "ring", 361.0, "8x H200", STAS),
    ("8xH200-SXM", None, 1, "reduce_scatter", "ring", 363.0, "8x H200", STAS),
    ("8xB200", None, 1, "all_reduce", "ring", 685.0, "Together AI", TOGETHER),
    ("8xB200", None, 1, "all_reduce", "nvls", 843.0, "Together AI", TOGETHER),
    ("8xB200", None, 1, "all_gather", "ring", 661.0, "Together AI", TOGETHER),
    ("8xB200", "8x400-IB", 4, "all_reduce", "ring", 386.0, "Together AI", TOGETHER),
    ("8xB200", "8x400-IB", 4, "all_gather", "ring", 376.0, "Together AI", TOGETHER),
    ("8xH100-SXM", None, 1, "all_reduce", "ring", 368.0, "Together AI", TOGETHER),
    ("8xH100-SXM", None, 1, "all_reduce", "nvls", 478.0, "Together AI", TOGETHER),
    ("8xH100-SXM", "8x400-IB", 2, "all_reduce", "ring", 368.0, "Together AI", TOGETHER),
    ("8xH100-SXM", "8x400-IB", 2, "all_reduce", "nvls", 480.0, "Together AI", TOGETHER),
    ("8xH100-SXM", "32x100-EFA", 2, "all_reduce", None, 488.0, "NVIDIA NVCRE", NVCRE),
    ("8xH100-SXM", "32x100-EFA", 2, "all_gather", None, 339.0, "NVIDIA NVCRE", NVCRE),
    ("8xH100-SXM", "32x100-EFA", 2, "all_to_all", None, 79.1, "NVIDIA NVCRE", NVCRE),
    ("16xGB200", None, 1, "all_reduce", None, 882.0, "NVIDIA NVCRE", NVCRE),
    ("72xGB200", None, 1, "all_reduce", None, 841.0, "CoreWeave", COREWEAVE),
    ("8xA100-SXM", None, 1, "all_reduce", None, 235.3, "Microsoft superbenchmark", SUPERBENCH + "nccl_allreduce.log"),
    ("8xA100-SXM", None, 1, "all_gather", None, 230.1, "Microsoft superbenchmark", SUPERBENCH + "nccl_allgather.log"),
    ("8xA100-SXM", None, 1, "broadcast", None, 234.7, "Microsoft superbenchmark", SUPERBENCH + "nccl_broadcast.log"),
    ("8xMI300X", None, 1, "all_reduce", None, 315.9, "hisohara", "https://github.com/hisohara/ai-scripts training/01_rccl-smoketest/README.md"),
)


@dataclass(frozen=True)
class Judged:
    """One published result beside its ceilings."""

    row: dict[str, Any]
    gpus: str
    nics: str | None
    nodes: int
    key: str
    algorithm: str | None
    line: float
    attainable: float
    platform: str
    fastest: frozenset[str]

    @property
    def ratio(self) -> float:
        return float(self.row["busbw_GBs"]) / self.attainable


def describe(row: dict[str, Any]) -> tuple[str, str | None, int]:
    """--gpus, --nics and --nodes of a published system. Raises ValueError with the reason."""
    model = next((name for words, name in SYSTEMS if re.search(words, row["system"])), None)
    if model is None:
        raise ValueError("its GPU is not in the table of models")
    n, nodes, per_node, nic = row["gpus"], row["nodes"], row["gpus_per_node"], row["nic"]
    if "MNNVL" in nic:
        # Whole racks of 64 or 72: the NVLink domain is the node.
        domains = {128: 2, 144: 2, 1440: 20}.get(n, 1)
        rate = 800 if model == "GB300" else 400
        return f"{n // domains}x{model}", None if domains == 1 else f"{n // domains}x{rate}-IB", domains
    if nodes == 1:
        return f"{per_node}x{model}", None, 1
    if "400G assumed" in nic:
        return f"{per_node}x{model}", f"8x400-{'RoCE' if 'RoCE' in nic else 'IB'}", nodes
    if "one NIC per GPU" in nic:
        return f"{per_node}x{model}", f"{per_node}x400-IB", nodes
    for pattern, kind in NICS:
        found = re.search(pattern, nic)
        if found:
            count, rate_gbit = [group for group in found.groups() if group][:2]
            return f"{per_node}x{model}", f"{count}x{rate_gbit}-{kind}", nodes
    raise ValueError(f"its NICs are not told: {nic!r}")


def judge(row: dict[str, Any]) -> Judged:
    """The ceilings of a published result. Raises ValueError where it cannot be described."""
    gpus, nics, nodes = describe(row)
    name = find(row["collective"]).name
    told = row.get("algo") or ("Ring" if "nccl-tests/issues/277" in row["source"] else None)  # that thread is about the ring
    key = f"{name}:node" if name == "sendrecv" and "per pair" in (row.get("note") or "") and nodes > 1 else name
    return ceiling_of(row, gpus, nics, nodes, key, ceiling_key(told.split(",")[0]) if told else None, sharp="SHARP" in row["nic"] or None)


def ceiling_of(row: dict[str, Any], gpus: str, nics: str | None, nodes: int, key: str, algorithm: str | None, sharp: bool | None = None) -> Judged:
    found = ideal.ceilings(spec.topology_of(gpus, nics, nodes), None, {}, collectives=[key.partition(":")[0]], sharp=sharp)
    ways = found.collectives[key]
    algorithm = algorithm if algorithm in ways.by_algorithm else None
    ceiling = ways.of(algorithm)
    return Judged(row, gpus, nics, nodes, key, algorithm, ceiling.line_GBps, ceiling.attainable_GBps, found.platform, ways.fastest)


def reports() -> list[Judged]:
    """The figures of REPORTS beside their ceilings."""
    return [
        ceiling_of({"system": source, "busbw_GBs": busbw, "source": where, "kind": "measured"}, gpus, nics, nodes, name, algorithm)
        for gpus, nics, nodes, name, algorithm, busbw, source, where in REPORTS
    ]


def largest(judged: list[Judged]) -> list[Judged]:
    """Of each run the best result at its largest size: what says how fast a system is."""
    best: dict[tuple[Any, ...], Judged] = {}
    for item in judged:
        row = item.row
        key = (row["system"], row["gpus"], row["nodes"], row["collective"], row["source"], row.get("algo"), row.get("note"))
        rank = (row["bytes"] or 1 << 40, row["busbw_GBs"])
        if key not in best or rank > (best[key].row["bytes"] or 1 << 40, best[key].row["busbw_GBs"]):
            best[key] = item
    return list(best.values())


def healthy(item: Judged) -> bool:
    """Whether a result is of a large size, on a system that nothing says is slow."""
    row = item.row
    return row["kind"] in ("measured", "maintainer_statement") and (row["bytes"] is None or row["bytes"] >= 1 << 30) and why_not(row) is None


def why_not(row: dict[str, Any]) -> str | None:
    """Why a result says nothing of what healthy systems reach."""
    text = f"{row['system']} {row['nic']} {row.get('note') or ''} {row['source']}"
    for words, collective, reason in NOT_HEALTHY:
        if words in text and collective in (None, row["collective"]) and not ("527" in words and row["nodes"] == 1):
            return None if "1368" in words and row.get("algo") == "Ring" else reason
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("published", type=Path)
    parser.add_argument("--write", type=Path, help="write the observations of `expected` here")
    options = parser.parse_args()
    rows = json.loads(options.published.read_text(encoding="utf-8"))
    judged, left_out = [], []
    for row in rows:
        if row["busbw_GBs"] in (None, 0, 0.0):
            continue
        try:
            judged.append(judge(row))
        except (ValueError, NcclBenchError) as err:
            left_out.append((row, str(err)))
    print_lines(judged)
    good = largest([item for item in judged if healthy(item)])
    print_healthy(good)
    print_set_aside([item for item in largest(judged) if item.row["kind"] == "measured" and why_not(item.row)])
    print_left_out(left_out)
    everything = good + reports()
    observed = observations(everything)
    if options.write:
        options.write.write_text("[\n" + ",\n".join("  " + json.dumps(asdict(row)) for row in observed) + "\n]\n", encoding="utf-8")
    print_expected(observed, {(item.platform, item.key): item.fastest for item in everything})


def print_lines(judged: list[Judged]) -> None:
    measured = [item for item in judged if item.row["kind"] == "measured"]
    above = [item for item in measured if item.row["busbw_GBs"] > item.line]
    top = max(measured, key=lambda item: item.row["busbw_GBs"] / item.line)
    closest = f"{top.row['busbw_GBs'] / top.line:.3f} ({top.row['system']}, {top.key})"
    print(f"{len(measured)} measured points described; above line: {len(above)}; closest {closest}")
    for item in above:
        print(f"  ABOVE {item.row['busbw_GBs']} of {item.line:.1f}: {item.row['system']} {item.key}")


def print_healthy(items: list[Judged]) -> None:
    print(f"\n{'system':44s} {'gpus x nodes':18s} {'nics':14s} {'collective':15s} {'algo':8s} {'line':>7s} {'attain':>7s} {'seen':>7s} ratio")
    for item in sorted(items, key=lambda item: (item.key, item.platform, -item.ratio)):
        shape = f"{item.gpus} x{item.nodes}"
        print(
            f"{item.row['system'][:44]:44s} {shape:18s} {item.nics or '-':14s} {item.key:15s} {item.algorithm or '-':8s} "
            f"{item.line:7.1f} {item.attainable:7.1f} {item.row['busbw_GBs']:7.1f} {item.ratio:5.3f}"
        )
    ratios = [item.ratio for item in items]
    spread = f"highest {max(ratios):.3f}, lowest {min(ratios):.3f}, >= 0.90: {sum(ratio >= 0.9 for ratio in ratios)}"
    print(f"{len(items)} healthy: median {statistics.median(ratios):.3f}, {spread}")


def print_left_out(left_out: list[tuple[dict[str, Any], str]]) -> None:
    reasons: dict[tuple[str, str], int] = defaultdict(int)
    for row, why in left_out:
        reasons[row["system"], why] += 1
    print(f"\nnot described: {len(left_out)}")
    for (system, why), count in reasons.items():
        print(f"  {count}x {system}: {why}")


def print_set_aside(items: list[Judged]) -> None:
    print("\nset aside as no sign of a healthy system's reach:")
    for item in items:
        print(f"  {item.ratio:5.3f} {item.row['system'][:40]:40s} {item.key:14s} {why_not(item.row)}")


def observations(items: list[Judged]) -> list[Observation]:
    """The rows of expected.json."""
    return [
        Observation(
            gpus=item.gpus,
            nics=item.nics,
            nodes=item.nodes,
            collective=item.key,
            algorithm=item.algorithm,
            busbw_GBps=item.row["busbw_GBs"],
            share_frac=round(item.ratio, 4),
            platform=item.platform,
            source=source_of(item.row),
            url=re.sub(r"^[^(]*stored page id \d+ \(|,? ?stored page id \d+|^OCI GB300 NVL72 \(|\)$", "", item.row["source"]),
        )
        for item in sorted(items, key=lambda item: (item.platform, item.key, item.algorithm or "", item.row["source"]))
    ]


def source_of(row: dict[str, Any]) -> str:
    """Who measured: the repository, with the thread where it is one; reports by their author."""
    found = re.match(r"https://github\.com/([\w.-]+/[\w.-]+)(?:/issues/(\d+))?", row["source"])
    operator = str(row["system"]).split()[0]
    if found is None:
        return operator
    if found[1] == "dstackai/dstack":  # one repository, clusters of several clouds
        return f"{found[1]}: {operator}"
    return f"{found[1]}#{found[2]}" if found[2] else found[1]


def print_expected(rows: list[Observation], fastest: dict[tuple[str, str], frozenset[str]]) -> None:
    """Each cell as it is looked up: its sources, low and middle; and which source would lie below the low of the others."""
    told = {(row.platform, row.collective, row.algorithm) for row in rows} | {(row.platform, row.collective, None) for row in rows}
    print(f"\nexpected: {len(rows)} observations (best: what a user gets who sets no algorithm)")
    print(f"{'platform':46s} {'collective':15s} {'algo':8s} rows sources   low   mid  below the low of the others when left out")
    for platform, key, algorithm in sorted(told, key=lambda cell: (cell[0], cell[1], cell[2] or "")):
        best = fastest[platform, key]
        names = {None, *best} if algorithm is None else {algorithm, None} if algorithm in best else {algorithm}
        found = [row for row in rows if (row.platform, row.collective) == (platform, key) and row.algorithm in names]
        sources = sorted({row.source for row in found})
        share = expected.share_of(found)
        text = "  -     -  " if share is None else f"{share.low_frac:5.3f} {share.mid_frac:5.3f}"
        print(f"{platform:46s} {key:15s} {algorithm or 'best':8s} {len(found):4d} {len(sources):7d}  {text}  {leave_one_out(found, sources)}")


def leave_one_out(rows: list[Observation], sources: list[str]) -> str:
    if len(sources) < 3:
        return "one source: the stated floor" if len(sources) < 2 else "two sources: not to be checked so"
    below = []
    for source in sources:
        share = expected.share_of([row for row in rows if row.source != source])
        own = max(row.share_frac for row in rows if row.source == source)
        if share is not None and own < share.low_frac:
            below.append(f"{source} {own:.3f} < {share.low_frac:.3f}")
    return "; ".join(below) or "none"


if __name__ == "__main__":
    main()
