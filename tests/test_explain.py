"""cli/explain.py: the words of the tables."""

from __future__ import annotations

import io
import json
import re

import pytest

from nccl_bench.cli.commands import COMMANDS, Command
from nccl_bench.cli.explain import Word, explain, find_word, load, write_list, write_word
from nccl_bench.cli.main import run
from nccl_bench.cli.outcome import MEANING
from nccl_bench.collectives import COLLECTIVES, bus_factor
from nccl_bench.errors import UsageError
from nccl_bench.measure.spec import DEFAULT_BUDGET_S, DEFAULT_PRECISION
from nccl_bench.verdict.criteria import KEYS, REQUIRE, Criteria

WORDS = load()
ASKED = (
    *("busbw", "algbw", "size", "clock", "graph", "queued", "eager", "host", "regime", "streaming", "isolated", "interval", "precision"),
    *("expected", "attainable", "line", "placement", "shift", "registration", "lateness", "dispatch", "exit-codes", "not-nccl", "shared-gpu"),
)


def page(word: str) -> str:
    stream = io.StringIO()
    write_word(find_word(word, WORDS), stream)
    return stream.getvalue()


@pytest.mark.parametrize("word", ASKED)
def test_every_word_that_screens_use_has_an_entry(word: str) -> None:
    assert find_word(word, WORDS).name == word


@pytest.mark.parametrize("row", WORDS.values(), ids=lambda row: row.name)
def test_an_entry_is_short_fits_the_screen_and_points_to_words_that_exist(row: Word) -> None:
    text = page(row.name)

    assert max(map(len, text.splitlines())) <= 100
    assert 3 <= len(text.splitlines()) <= 30
    assert len(row.short) <= 90
    for other in row.see:
        assert other in WORDS
        assert other != row.name


def test_several_words_are_one_entry_and_columns_have_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "limited", "by"]) == 0
    assert capsys.readouterr().out.startswith("limited-by: ")
    for word in ("algo", "MFU", "bubble", "exposed", "tie", "rms"):
        assert find_word(word, WORDS).name == word.lower()
    assert run(["explain", "no", "such"]) == 2
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 100


@pytest.mark.parametrize("row", COMMANDS, ids=[row.name for row in COMMANDS])
def test_no_flag_is_shown_with_a_value(row: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([row.name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--help" in text
    assert "bool" not in text.lower().split()
    assert "<bool>" not in text


def test_no_spelling_means_two_words() -> None:
    spellings = [spelling.lower() for row in WORDS.values() for spelling in (row.name, *row.also)]

    assert len(spellings) == len(set(spellings))
    assert not [spelling for spelling in spellings if spelling.startswith("-")], "the command line would take it for an option"


@pytest.mark.parametrize(
    "text, name",
    [("BusBW", "busbw"), ("exit_codes", "exit-codes"), ("exit codes", "exit-codes"), ("±", "interval"), ("GB/s", "units"), ("gloo", "not-nccl")],
)
def test_a_word_is_found_in_any_spelling(text: str, name: str) -> None:
    assert find_word(text, WORDS).name == name


def test_a_typo_gets_the_close_words_and_ends_2() -> None:
    with pytest.raises(UsageError, match="clokc") as caught:
        find_word("clokc", WORDS)

    assert caught.value.exit_code == 2
    assert "clock" in caught.value.hints[0]
    assert "there are: busbw" in caught.value.hints[1]


@pytest.mark.parametrize("word", ["accept", "criteria", "pairs", "doctor", "certificate", "threshold", "141"])
def test_the_words_of_an_acceptance_are_there(word: str) -> None:
    assert find_word(word, WORDS).name in ("accept", "criteria", "pairs", "doctor", "exit-codes")


def test_a_command_without_an_entry_is_known_as_one() -> None:
    with pytest.raises(UsageError) as caught:
        find_word("slurm", WORDS)

    assert caught.value.hints[0] == "slurm is a command: nccl-bench slurm --help"


def test_what_explain_says_of_criteria_is_what_the_file_may_hold() -> None:
    words = re.findall(r"[a-zA-Z0-9_]+", WORDS["criteria"].text)

    assert set(KEYS) <= set(words)
    assert set(REQUIRE) - {"statistic"} <= set(words)
    assert f"{Criteria().share.value:g} of the low end" in " ".join(WORDS["criteria"].text.split())


def test_a_word_near_to_none_gets_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        find_word("zzzzzz", WORDS)

    assert "busbw" in caught.value.hints[0]


def test_the_list_has_every_word() -> None:
    stream = io.StringIO()
    write_list(WORDS, stream)

    for name in WORDS:
        assert re.search(rf"^{re.escape(name)}  +\S", stream.getvalue(), re.MULTILINE)


def test_json_without_a_word_is_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    explain(None, True)
    records = json.loads(capsys.readouterr().out)

    assert [record["word"] for record in records] == list(WORDS)


def test_the_factors_are_those_that_are_used() -> None:
    """Each line of the formula is evaluated for some n and held against the table that computes busbw."""
    lines = re.findall(r"^    ([a-z_ ]+?)  +(\S+)$", WORDS["busbw"].text, re.MULTILINE)
    named = {name: formula for names, formula in lines for name in names.split() if name in COLLECTIVES}

    assert set(named) == set(COLLECTIVES)
    for name, formula in named.items():
        for n in (2, 3, 8, 1000):
            assert eval(re.sub(r"(\d)\(", r"\1*(", formula), {"n": n}) == pytest.approx(bus_factor(name, n))


def test_the_exit_codes_are_those_that_are_used() -> None:
    codes = {int(code) for code in re.findall(r"^ +(\d+)   ", WORDS["exit-codes"].text, re.MULTILINE)}

    assert codes == set(MEANING)


def test_the_defaults_named_are_those_that_are_used() -> None:
    text = WORDS["precision"].text

    assert f"({DEFAULT_PRECISION['nccl']:g} on NCCL, {DEFAULT_PRECISION['gloo']:g} on gloo)" in " ".join(text.split())
    assert f"({DEFAULT_BUDGET_S['nccl']:g} and {DEFAULT_BUDGET_S['gloo']:g})" in " ".join(text.split())
