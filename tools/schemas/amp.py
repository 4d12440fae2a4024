"""Amp: what its help says. It publishes no schema; its stream is said to be compatible with Claude Code's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from legation.errors import AgentError
from tools.schemas.expression import Field, Literal, Name, Object, Type, union
from tools.schemas.inventory import Inventory, inventory
from tools.schemas.places import Places, asked_program

PROGRAM: Final = "@ampcode/cli-linux-*/amp"
_EMPTY: Final = {"object", "never"}  # a part of the help in which nothing was found


def find(places: Places) -> Path | None:
    return places.program([PROGRAM], "amp")


async def extract(program: Path) -> Inventory:
    async with asked_program("amp", program) as amp:
        version = (await amp.said("--version")).split()[0]
        types = help_types(await amp.said("--help"))
    found = inventory("amp", version, "@ampcode/cli: amp --help", types)
    if any(each in _EMPTY for each in found.definitions.values() if isinstance(each, str)):
        raise AgentError("cannot read the help of amp: it has another form now; helptext.py is to be changed")
    return found


# The help of a program, as facts: its commands, its options and whether they take a value, its variables, settings.


_SECTION: Final = re.compile(r"^(\S.*):$")
_COMMAND: Final = re.compile(r"^((?:  )+)([a-z][\w-]*)(?:\s{2,}(?:\[alias: ([^\]]+)\])?|$)")
_OPTION: Final = re.compile(r"^  (-{1,2}[\w-]+(?:, -{1,2}[\w-]+)*)(?: ([<\[])[^>\]]+[>\]])?$")
_VARIABLE: Final = re.compile(r"^  ([A-Z][A-Z0-9_]+)\s{2,}")
_SETTING: Final = re.compile(r"^  (amp\.[\w.]+)$")
_VALUES: Final = {"<": Name("value"), "[": union([Name("value"), Name("none")]), None: Name("none")}


def help_types(text: str) -> dict[str, Type]:
    """Wrapped lines of a description start further in than what they belong to, and are passed over."""
    sections = dict(_sections(text))
    return {
        "commands": Object(dict(_commands(sections.get("Commands", [])))),
        "options": Object(dict(_options(sections.get("Options", [])))),
        "variables": _all(_VARIABLE, sections.get("Environment variables", [])),
        "settings": _all(_SETTING, sections.get("Settings reference", [])),
    }


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    lines: list[str] = []
    for line in text.splitlines():
        head = _SECTION.match(line)
        if head:
            lines = []
            yield head[1], lines
        else:
            lines.append(line)


def _commands(lines: list[str]) -> Iterator[tuple[str, Field]]:
    """`threads list` and its other names; a command below another stands two spaces further in."""
    path: list[str] = []
    for line in lines:
        found = _COMMAND.match(line)
        depth = len(found[1]) // 2 - 1 if found else 0
        if found and depth <= len(path):  # further in stands the rest of a description
            path = [*path[:depth], found[2]]
            aliases = [Literal.of(each) for each in (found[3] or "").split(", ") if each]
            yield " ".join(path), Field(union([*aliases]) if aliases else Name("none"), required=True)


def _options(lines: list[str]) -> Iterator[tuple[str, Field]]:
    for line in lines:
        found = _OPTION.match(line)
        if found:
            names = found[1].split(", ")
            yield ", ".join(sorted(names, key=len)), Field(_VALUES[found[2]], required=True)


def _all(pattern: re.Pattern[str], lines: list[str]) -> Type:
    return union([Literal.of(found[1]) for line in lines if (found := pattern.match(line))])
