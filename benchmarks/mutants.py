#!/usr/bin/env python3
"""Whether the tests of the arithmetic would notice a fault: small faults put into a module one at a time (cosmic-ray), and who survives.

    pip install cosmic-ray
    python benchmarks/mutants.py ideal [--sample 200] [--seed 1]

A copy of the working tree is changed, never the tree itself. Left out are annotations (never evaluated), decorators with their arguments, stars
that are no products (`f(*x)` would be no Python), and comparisons by identity (`==` and `is` are one for small numbers and None). Logs from the
field count where NCCL_BENCH_FIELD_CASES names their folder.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MODULES = {
    "ideal": ("nccl_bench/fabric/ideal.py", ("fabric_ideal", "fabric_expected"), ""),
    "bounds": ("nccl_bench/fabric/bounds.py", ("fabric_ideal",), ""),
    "paths": ("nccl_bench/fabric/paths.py", ("fabric_ideal",), ""),
    "ceilings": ("nccl_bench/verdict/ceilings.py", ("ceilings",), ""),
    "groups": ("nccl_bench/groups.py", ("groups",), ""),
    "stopping": ("nccl_bench/measure/stopping.py", ("stopping",), ""),
    "stats": ("nccl_bench/measure/stats.py", ("stopping",), ""),
    "compare": ("nccl_bench/verdict/compare.py", ("compare",), "alarm or shift_of_5"),
    "localise": ("nccl_bench/verdict/localise.py", ("suspects", "localise", "ranked"), "kind_of or clean_ or several_faults"),
}
"""The file that is changed, the tests that ought to notice, and those of them (pytest's -k) that are left out because they take long: with them
the score can only rise."""
LEFT_OUT = ("Eq_Is", "NotEq_IsNot", "Is_Eq", "IsNot_NotEq")
TIMEOUT_S = 300
"""A mutant whose tests run longer hangs, and is noticed by that; ten times what they take on a busy machine."""


Range = tuple[tuple[int, int], tuple[int, int]]


def spans(path: Path) -> tuple[list[Range], list[Range]]:
    """Of a module: what never matters (annotations, decorators), and where its operators of two operands stand."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    dull = [part for node in nodes for name in ("annotation", "returns") if (part := getattr(node, name, None)) is not None]
    dull += [part for node in nodes for part in getattr(node, "decorator_list", ())]
    operands = [(node.left, node.right) for node in nodes if isinstance(node, ast.BinOp)]
    operands += [(node.target, node.value) for node in nodes if isinstance(node, ast.AugAssign)]
    return [(begin(part), end(part)) for part in dull], [(end(left), begin(right)) for left, right in operands]


def begin(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def end(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def counts(mutation: Any, dull: list[Range], operators: list[Range]) -> bool:
    """Whether a mutant changes what a program does."""
    inside = operators if "BinaryOperator" in mutation.operator_name else [((0, 0), (1 << 30, 0))]
    return (
        not mutation.operator_name.endswith(LEFT_OUT)
        and any(first <= mutation.start_pos < last for first, last in inside)
        and not any(first <= mutation.start_pos < last for first, last in dull)
    )


def prepare(tree: Path, name: str) -> Path:
    """The session of a module in a copy of the working tree: every mutant that there is."""
    for folder in ("nccl_bench", "tests", "docs", "criteria", "results"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tree)
    module, tests, slow = MODULES[name]
    chosen = [f"tests/test_{test}.py" for test in tests] + (["-k", f"not ({slow})"] if slow else [])
    command = shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *chosen])
    config = tree / "mutants.toml"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{module}"\ntimeout = {TIMEOUT_S}.0\nexcluded-modules = []\ntest-command = {json.dumps(command)}\n'
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    session = tree / "mutants.sqlite"
    ray(tree, "init", config, session)
    return session


def ray(tree: Path, command: str, *paths: Path) -> None:
    """One command of cosmic-ray, in the copy; the tests draw the same examples each time."""
    program = str(Path(sys.executable).with_name("cosmic-ray"))
    subprocess.run([program, command, *map(str, paths)], cwd=tree, env={**os.environ, "CI": "true", "PYTHONDONTWRITEBYTECODE": "1"}, check=True)


def sample(session: Path, tree: Path, n: int, seed: int) -> tuple[int, int]:
    """(mutants that count, mutants chosen); the others are marked as left out."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(session, WorkDB.Mode.open) as db:
        items = sorted(db.work_items, key=lambda item: (item.mutations[0].start_pos, item.mutations[0].operator_name, item.mutations[0].occurrence))
        dull, operators = spans(tree / items[0].mutations[0].module_path)
        counted = [item for item in items if counts(item.mutations[0], dull, operators)]
        chosen = {item.job_id for item in random.Random(seed).sample(counted, min(n, len(counted)))}
        for item in items:
            if item.job_id not in chosen:
                db.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(counted), len(chosen)


def outcomes(session: Path) -> tuple[Counter[str], list[str]]:
    """How many were killed, hung and survived, and each survivor: place, what was changed, and into what."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome

    with use_db(session, WorkDB.Mode.open) as db:
        mutations = {item.job_id: item.mutations[0] for item in db.work_items}
        results = [(mutations[job], result) for job, result in db.results if result.test_outcome is not None]
    survived = sorted(((at, result) for at, result in results if result.test_outcome == TestOutcome.SURVIVED), key=lambda row: row[0].start_pos)
    hung = {True: "hung", False: "killed"}
    kinds = ("survived" if result.test_outcome == TestOutcome.SURVIVED else hung[result.output == "timeout"] for _, result in results)
    return Counter(kinds), [
        f"{at.module_path}:{at.start_pos[0]}: {at.operator_name.removeprefix('core/')}\n{changed(result)}" for at, result in survived
    ]


def changed(result: Any) -> str:
    """The lines of a diff that differ."""
    return "\n".join(f"    {line}" for line in result.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", choices=MODULES)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        session = prepare(tree, given.module)
        all_, n = sample(session, tree, given.sample, given.seed)
        ray(tree, "baseline", tree / "mutants.toml")
        ray(tree, "exec", tree / "mutants.toml", session)
        counts, survivors = outcomes(session)
    print(*survivors, sep="\n")
    print(f"{given.module}: {n} of {all_} mutants (seed {given.seed}): {counts['killed']} killed, {counts['hung']} hung, ", end="")
    print(f"{counts['survived']} survived, score {1 - counts['survived'] / max(1, n):.1%}")


if __name__ == "__main__":
    main()
