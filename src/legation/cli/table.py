"""Lists: columns for people, one JSON object a line for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from legation.cli.terminal import Terminal, line

T = TypeVar("T", bound=msgspec.Struct)


def show(
    rows: Iterable[T], columns: Mapping[str, Callable[[T], str | None]], *, json: bool, if_empty: str
) -> None:
    if json:
        for row in rows:
            say_json(row)
        return
    out, shown = Terminal(), [[line(cell(row) or "-") for cell in columns.values()] for row in rows]
    if not shown:
        out.say(if_empty, "dim")
        return
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    out.say(_spread(columns, widths), "dim")
    for cells in shown:
        out.say(_spread(cells, widths))


def _spread(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def say_json(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def when(ms: int | None) -> str | None:
    """A time as people and scripts read it."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def named(by: str | None, name: str | None) -> str | None:
    """Who did something: a person by name, with the id that is theirs alone."""
    return by if name is None else f"{name} ({by})"
