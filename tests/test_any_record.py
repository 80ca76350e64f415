"""Records, criteria, sizes and specifications of any shape: a value or an error in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_bench.errors import NcclBenchError
from nccl_bench.fabric import spec
from nccl_bench.fabric.topology import Node
from nccl_bench.groups import parse_mesh
from nccl_bench.launch.hostlist import expand, tasks_per_node
from nccl_bench.records import Point, RunHeader, Want
from nccl_bench.results.check import check
from nccl_bench.units import parse_seconds, parse_size
from nccl_bench.verdict import criteria

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["ok", "all_reduce", "largest", "cluster", "fail"])
)


def json_with(keys: list[str]) -> st.SearchStrategy[Any]:
    """JSON whose objects have these keys often."""
    names = st.one_of(st.sampled_from(keys), st.text(max_size=4))
    return st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=6)), max_leaves=12)


def objects(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.one_of(st.sampled_from(keys), st.text(max_size=4)), json_with(keys), max_size=8)


def in_words(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives; None where it refuses in words. Everything else comes through."""
    try:
        return function(*args)
    except NcclBenchError as err:
        return None if err.why and "\n" not in err.why else pytest.fail(f"no single line: {err.why!r}")


WHOLE = {"collective": "all_reduce", "dtype": "float32", "op": "sum", "root": None, "nbytes": 8, "requested_nbytes": 8, "count": 2, "n_ranks": 2,
         "placement": "in", "clock": "host", "regime": "streaming"}  # fmt: skip


@given(record=objects([item.name for item in fields(Point)]), whole=st.booleans())
def test_any_point_is_read_or_refused_in_words(record: dict[str, Any], whole: bool) -> None:
    point = in_words(Point.from_json, {**WHOLE, **record} if whole else record)
    if point is not None:
        in_words(check, point)


@given(record=objects([item.name for item in fields(RunHeader)]))
def test_any_header_is_read_or_refused_in_words(record: dict[str, Any]) -> None:
    header = in_words(RunHeader.from_json, record)
    if header is not None:
        in_words(check, header)


@given(record=objects([item.name for item in fields(Want)]))
def test_any_want_is_read_or_refused_in_words(record: dict[str, Any]) -> None:
    in_words(Want.from_json, record)


@given(record=objects([item.name for item in fields(Node)]))
def test_any_node_is_read_or_refused_in_words(record: dict[str, Any]) -> None:
    in_words(Node.from_json, record)


CRITERIA = [*criteria.KEYS, *criteria.REQUIRE, *(key for keys in criteria.KEYS.values() for key in keys)]


@given(record=objects(CRITERIA))
def test_any_criteria_are_read_or_refused_in_words(record: dict[str, Any]) -> None:
    found = in_words(criteria.parse, record, "criteria.toml")
    if found is not None:
        assert found.thresholds()


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(criteria.REQUIRE), SCALARS), max_size=3),
    shares=st.dictionaries(st.sampled_from(["all_reduce", "x"]), SCALARS),
)
def test_any_requirement_is_read_or_refused_in_words(rows: list[dict[str, Any]], shares: dict[str, Any]) -> None:
    found = in_words(criteria.parse, {"require": rows, "bandwidth": {"shares": shares}}, "criteria.toml")
    if found is not None:
        assert len(found.require) == len(rows)


TEXT = st.one_of(st.text(max_size=12), st.from_regex(r"[0-9]{0,3}[x.,\-\[\]()=:]{0,2}[A-Za-z0-9\-\[\],=()x]{0,12}", fullmatch=True))
PARSERS = (parse_size, parse_seconds, parse_mesh, expand, tasks_per_node, spec.parse_gpus, spec.parse_nics, spec.find_system)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda one: one.__name__)
@given(text=TEXT)
def test_any_text_is_parsed_or_refused_in_words(parser: Callable[[str], Any], text: str) -> None:
    in_words(parser, text)


NO_LISTS = [{"require": None}, {"require": 3}, {"require": [1]}, {"bandwidth": {"ranges": None}}, {"bandwidth": {"shares": []}}]


@pytest.mark.parametrize("record", NO_LISTS)
def test_lists_and_tables_of_criteria_that_are_none_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(NcclBenchError, match=r"criteria\.toml: .*table"):
        criteria.parse(record, "criteria.toml")
