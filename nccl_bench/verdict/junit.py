"""Rows of an acceptance as JUnit XML and as a Prometheus textfile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import junitparser

from nccl_bench.records import Json
from nccl_bench.verdict.rows import Row


def junit_xml(rows: Sequence[Row], name: str) -> str:
    """A suite a stage; what failed is a failure, what is inconclusive an error (no tool may take it for a pass), a warning is system-out."""
    xml = junitparser.JUnitXml(name)
    suites: dict[str, junitparser.TestSuite] = {}
    for row in rows:
        case = junitparser.TestCase(row.criterion + (f" [{', '.join(row.hosts)}]" if row.hosts else ""), classname=row.stage)
        text = f"measured {_said(row.measured)} {row.unit or ''}, required {_said(row.required)}: {row.reason} (source: {row.source})"
        if row.status == "fail":
            case.result = [junitparser.Failure(text, "fail")]
        elif row.status == "inconclusive":
            case.result = [junitparser.Error(text, "inconclusive")]
        elif row.status == "warn":
            case.system_out = f"warning: {text}"
        suites.setdefault(row.stage, junitparser.TestSuite(row.stage)).add_testcase(case)
    for suite in suites.values():
        xml.add_testsuite(suite)
    whole: Any = xml
    whole.update_statistics()
    written: str = whole.tostring().decode("utf-8")
    return written


def _said(value: object) -> str:
    return "-" if value is None else str(value)


def prometheus(verdict: Json) -> str:
    """The exposition format (node_exporter's textfile collector): verdict, rows by stage and status, suspects, bandwidths."""
    lines = [
        "# HELP nccl_bench_accept_exit_code Exit code of the verdict: 0 pass, 1 fail, 7 wrong data, 8 inconclusive",
        "# TYPE nccl_bench_accept_exit_code gauge",
    ]
    lines.append(f"nccl_bench_accept_exit_code {verdict['exit_code']}")
    counts: dict[tuple[str, str], int] = {}
    for row in verdict["rows"]:
        counts[row["stage"], row["status"]] = counts.get((row["stage"], row["status"]), 0) + 1
    lines += ["# HELP nccl_bench_accept_rows Rows of the acceptance by stage and status", "# TYPE nccl_bench_accept_rows gauge"]
    lines += [f'nccl_bench_accept_rows{{stage="{_label(stage)}",status="{status}"}} {n}' for (stage, status), n in sorted(counts.items())]
    lines += ["# HELP nccl_bench_accept_suspect What a suspect loses, 0 to 1", "# TYPE nccl_bench_accept_suspect gauge"]
    for one in verdict["suspects"]:
        device = one["nic"] or ("" if one["gpu"] is None else f"gpu {one['gpu']}")
        lines.append(
            f'nccl_bench_accept_suspect{{kind="{one["kind"]}",host="{_label(one["host"] or "")}",device="{_label(device)}"}} {one["score"]:.6g}'
        )
    rates = [row for row in verdict["rows"] if row["unit"] == "GB/s" and isinstance(row["measured"], (int, float))]
    lines += [
        "# HELP nccl_bench_accept_busbw_bytes_per_second Bus bandwidth at the largest size",
        "# TYPE nccl_bench_accept_busbw_bytes_per_second gauge",
    ]
    seen: set[str] = set()
    for row in rates:
        hosts = _label(",".join(row["hosts"]))
        labels = f'stage="{row["stage"]}",case="{_label(row["criterion"])}",host="{hosts}"'
        name = f"nccl_bench_accept_busbw_bytes_per_second{{{labels}}}"
        if name not in seen:
            seen.add(name)
            lines.append(f"{name} {row['measured'] * 1e9:.6g}")
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
