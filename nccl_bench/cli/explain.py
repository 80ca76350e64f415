"""`nccl-bench explain WORD`: the words of the tables in short plain text, from explain.toml."""

from __future__ import annotations

import difflib
import json
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, TextIO

import typer

from nccl_bench.cli.commands import COMMANDS
from nccl_bench.errors import UsageError

WIDTH = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One entry of explain.toml."""

    name: str
    short: str
    """One line."""
    text: str
    also: tuple[str, ...] = ()
    """Other spellings."""
    sources: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    """Related words."""


def _begun(incomplete: str) -> list[str]:
    """Words that begin so, for a shell's completion."""
    return [name for name in load() if name.startswith(incomplete)]


def explain(
    word: Annotated[
        list[str] | None, typer.Argument(help="A word of the tables (limited by is one); none: list them.", metavar="[WORD]", autocompletion=_begun)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Say what a word of the tables means: busbw, clock, regime, expected, exit-codes ...

    Without a word: list them all.
    """
    words = load()
    asked = " ".join(word or ())
    if as_json:
        records = _record(find_word(asked, words)) if asked else [_record(row) for row in words.values()]
        sys.stdout.write(json.dumps(records, indent=1, ensure_ascii=False) + "\n")
    elif asked:
        write_word(find_word(asked, words), sys.stdout)
    else:
        write_list(words, sys.stdout)


def load() -> dict[str, Word]:
    """Every word by name, in the order of the file."""
    table = tomllib.loads((files("nccl_bench.cli") / "explain.toml").read_text("utf-8"))
    return {
        name: Word(
            name=name,
            short=row["short"],
            text=row["text"].strip("\n"),
            also=tuple(row.get("also", ())),
            sources=tuple(row.get("sources", ())),
            see=tuple(row.get("see", ())),
        )
        for name, row in table.items()
    }


def find_word(text: str, words: Mapping[str, Word]) -> Word:
    """The entry a word means, in any spelling. Raises UsageError with close matches."""
    by_key = {_key(spelling): row for row in words.values() for spelling in (*row.also, row.name)}
    row = by_key.get(_key(text))
    if row is not None:
        return row
    close = difflib.get_close_matches(_key(text), by_key, n=4, cutoff=0.6)
    names = list(dict.fromkeys(by_key[key].name for key in close))
    hints = [f"did you mean: {', '.join(names)}?"] if names else []
    if _key(text) in {row.name for row in COMMANDS}:
        hints = [f"{_key(text)} is a command: nccl-bench {_key(text)} --help"]
    listed = textwrap.wrap(f"there are: {' '.join(words)}", WIDTH, break_on_hyphens=False)
    raise UsageError(f"explain: no entry for {text!r}", *hints, *listed, "nccl-bench explain says a line of each")


def _key(text: str) -> str:
    return text.strip().lower().replace("_", "-").replace(" ", "-")


def write_list(words: Mapping[str, Word], stream: TextIO) -> None:
    """Each word with its line."""
    width = max(map(len, words))
    stream.write("".join(f"{row.name:<{width}}  {row.short}\n" for row in words.values()))
    stream.write("\nnccl-bench explain WORD says more.\n")


def write_word(row: Word, stream: TextIO) -> None:
    """One entry."""
    lines = [f"{row.name}: {row.short}", "", row.text, ""]
    lines += [f"source: {source}" for source in row.sources]
    lines += [f"see also: {', '.join(row.see)}"] if row.see else []
    stream.write("\n".join(lines).rstrip("\n") + "\n")


def _record(row: Word) -> dict[str, object]:
    return {"word": row.name, "short": row.short, "text": row.text, "also": list(row.also), "sources": list(row.sources), "see": list(row.see)}
