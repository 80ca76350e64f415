"""Rows of an acceptance as JUnit XML and as a Prometheus textfile."""

from __future__ import annotations

import math
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
    # A series that stands twice makes node_exporter refuse the whole file: of equal labels the worst counts.
    losses: dict[str, float] = {}
    for one in verdict["suspects"]:
        device = one["nic"] or ("" if one["gpu"] is None else f"gpu {one['gpu']}")
        values = {"kind": one["kind"], "host": one["host"] or "", "device": device, "peer": one["peer"] or ""}
        text = ",".join(f'{name}="{_label(value)}"' for name, value in values.items())
        losses[text] = max(one["score"], losses.get(text, 0.0))
    lines += [f"nccl_bench_accept_suspect{{{text}}} {score:.6g}" for text, score in losses.items()]
    lines += [
        "# HELP nccl_bench_accept_busbw_bytes_per_second Bus bandwidth at the largest size, of the slowest world",
        "# TYPE nccl_bench_accept_busbw_bytes_per_second gauge",
    ]
    rates: dict[str, float] = {}
    for row in verdict["rows"]:
        if row["unit"] == "GB/s" and isinstance(row["measured"], (int, float)) and row["criterion"].endswith(" bandwidth"):
            labels = f'stage="{_label(row["stage"])}",case="{_label(row["criterion"])}",host="{_label(",".join(row["hosts"]))}"'
            rates[labels] = min(row["measured"] * 1e9, rates.get(labels, math.inf))
    lines += [f"nccl_bench_accept_busbw_bytes_per_second{{{labels}}} {rate:.6g}" for labels, rate in rates.items()]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
