"""YAML with the line of everything in it, and without its surprises.

YAML reads `no` as false, `010` as 8, `12:30` as 750 and `2024-01-01` as a date, and takes the last of two
equal keys. In a rulebook each of these is a mistake, and is said to be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from legation.approvals.policy.patterns import BadGlob, go_glob
from legation.errors import ConfigInvalid

_SHOWN: Final = 60  # characters of a word from the file
_MOST: Final = 100  # problems that are listed


@dataclass(slots=True)
class Problems:
    """All that is wrong with the owner's files, each with its place and the word that was probably meant."""

    found: list[tuple[str, int, str]] = field(default_factory=list)

    def add(self, file: str, line: int, what: str) -> None:
        self.found.append((file, line, what))

    def raise_if_any(self) -> None:
        if not self.found:
            return
        # By file in the order they were read, and by line in each.
        files = {file: order for order, (file, _, _) in reversed(list(enumerate(self.found)))}
        in_order = sorted(self.found, key=lambda each: (files[each[0]], each[1]))
        lines = [f"{file}:{line}: {what}" if line else f"{file}: {what}" for file, line, what in in_order]
        if len(lines) > _MOST:
            lines = [*lines[:_MOST], f"and {len(lines) - _MOST} more"]
        listed = "".join(f"\n- {line}" for line in lines)
        raise ConfigInvalid(f"cannot use the policies; correct this:{listed}", {"problems": lines})


def shown(word: object) -> str:
    text = repr(word)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """Say `unknown action 'denny'; did you mean 'deny'?`"""
    words = list(known)
    near = nearest(word, words)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(words)}"
    return f"unknown {what} {shown(word)}; {hint}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    from difflib import get_close_matches  # only a mistake needs it

    words = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), words, n=1, cutoff=cutoff)
    return words[near[0]] if near else None


if TYPE_CHECKING:
    import yaml

    _Yaml = yaml.ScalarNode | yaml.SequenceNode | yaml.MappingNode

_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?", re.ASCII)
_MAX_DIGITS: Final = 30
_MAX_DEPTH: Final = 50
_TAG: Final = "tag:yaml.org,2002:"

Report = Callable[[int, str], None]
Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """A map, a list, or one plain value; of a map, `key_lines` are the lines of its keys."""

    line: int
    value: dict[str, Node] | list[Node] | Plain
    raw: str = ""  # a plain value as it was written

    def plain(self) -> object:
        """Drop the lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_documents(text: str, report: Report) -> list[Node]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if deep := _first_too_deep(text, loader):
            report(deep, f"nested deeper than {_MAX_DEPTH}; write it flatter")
            return []
        nodes = [node for node in yaml.compose_all(text, Loader=loader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        report(
            mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}; correct the syntax"
        )
        return []
    except yaml.YAMLError as error:
        report(1, f"not YAML: {getattr(error, 'reason', 'unreadable')}; write it as UTF-8 text")
        return []
    converter = _Converter(report)
    return [converter.node(node) for node in nodes]


def _first_too_deep(text: str, loader: type) -> int | None:
    """Find the line where it is nested too deep: composing it would overflow the stack of the parser, written in C."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            return int(event.start_mark.line) + 1
    return None


class _Converter:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen: set[int] = set()

    def node(self, node: _Yaml) -> Node:
        line = node.start_mark.line + 1
        if id(node) in self._seen:
            self._report(line, "an alias (`*name`) is not taken; write it out")
            return Node(line, None)
        self._seen.add(id(node))
        if node.id == "mapping":
            return self._map(node, line)
        if node.id == "sequence":
            return Node(line, [self.node(item) for item in node.value])
        return Node(line, self._scalar(node, line), node.value)

    def _map(self, node: _Yaml, line: int) -> Node:
        found: dict[str, Node] = {}
        for key, value in node.value:
            key_line = key.start_mark.line + 1
            inner = self.node(value)
            if key.id != "scalar":
                self._report(key_line, "a key that is a list or a map; write a word")
            elif key.value in found:
                self._report(key_line, f"{shown(key.value)} is here twice; leave one of them out")
            else:
                # What is said of a plain value is said of the line of its key: they may be lines apart.
                found[key.value] = Node(key_line, inner.value, inner.raw)
        return Node(line, found)

    def _scalar(self, node: _Yaml, line: int) -> Plain:
        text: str = node.value
        kind = str(node.tag).removeprefix(_TAG)
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool" and text in ("true", "false"):
            return text == "true"
        if kind in ("int", "float") and _NUMBER.fullmatch(text) and len(text) <= _MAX_DIGITS:
            return float(text) if "." in text else int(text)
        if kind == "bool" and text == "off":
            return "off"
        meant = "true or false, or quote it" if kind == "bool" else "a plain number, or quote it as text"
        if kind not in ("bool", "int", "float"):
            meant = "it in quotes"
        self._report(line, f"{shown(text)} means something else in YAML than it seems; write {meant}")
        return text


_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
MAX_TEXT: Final = 2000  # characters of a message or a pattern
WEEK: Final = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the owner: every value is checked, and every mistake is noted with its line."""

    file: str
    problems: Problems

    def report(self, line: int, what: str) -> None:
        self.problems.add(self.file, line, what)

    def place(self, node: Node) -> str:
        return f"{self.file}:{node.line}"

    def map(self, node: Node, what: str, known: Iterable[str]) -> dict[str, Node]:
        """Read its members, of which all are known."""
        if not isinstance(node.value, dict):
            self.report(node.line, f"{what} is no map; write `key: value` lines")
            return {}
        words = tuple(known)
        for key, inner in node.value.items():
            if key not in words:
                self.report(inner.line, unknown(f"key of {what}", key, words))
        return {key: inner for key, inner in node.value.items() if key in words}

    def items(self, node: Node, what: str) -> list[Node]:
        """Read a list that has some."""
        if isinstance(node.value, list) and node.value:
            return node.value
        self.report(node.line, f"{what} is no list; write `- ` before each item, and at least one")
        return []

    def one_or_more(self, node: Node) -> list[Node]:
        return node.value if isinstance(node.value, list) and node.value else [node]

    def text(self, node: Node, what: str) -> str | None:
        if isinstance(node.value, str) and 0 < len(node.value) <= MAX_TEXT:
            return node.value
        self.report(
            node.line, f"{what} is no text of 1 to {MAX_TEXT} characters; write one, in quotes if need be"
        )
        return None

    def name(self, node: Node, what: str) -> str | None:
        if isinstance(node.value, str) and _NAME.fullmatch(node.value):
            return node.value
        self.report(node.line, f"{what} is no name; write letters, digits, `_`, `-` and `.`, at most 64")
        return None

    def names(self, node: Node, what: str) -> tuple[str, ...]:
        found = (self.text(item, what) for item in self.one_or_more(node))
        return tuple(text for text in found if text is not None)

    def globs(self, node: Node, what: str) -> tuple[str, ...]:
        """Read globs for names; malformed ones are refused."""
        good = []
        for item in self.one_or_more(node):
            text = self.text(item, what)
            if text is None:
                continue
            try:
                go_glob(text)
            except BadGlob as error:
                self.report(item.line, f"malformed glob {shown(text)}: {error}")
            else:
                good.append(text)
        return tuple(good)

    def words(self, node: Node, what: str, known: Iterable[str]) -> tuple[str, ...]:
        words = tuple(known)
        good = []
        for item in self.one_or_more(node):
            if isinstance(item.value, str) and item.value in words:
                good.append(item.value)
            else:
                self.report(item.line, unknown(what, item.raw, words))
        return tuple(good)

    def word(self, node: Node, what: str, known: Iterable[str]) -> str | None:
        words = tuple(known)
        if isinstance(node.value, str) and node.value in words:
            return node.value
        self.report(node.line, unknown(what, node.raw, words))
        return None

    def count(self, node: Node, what: str, least: int = 1) -> int | None:
        value = node.value
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**9:
            return value
        self.report(node.line, f"{what} is no whole number from {least} to 1000000000; write one")
        return None

    def number(self, node: Node, what: str) -> float | None:
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        self.report(node.line, f"{what} is no number; write one, without quotes")
        return None

    def duration(self, node: Node, what: str, most: float = WEEK) -> float | None:
        found = _DURATION.fullmatch(node.value) if isinstance(node.value, str) else None
        seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
        if 0 < seconds <= most:
            return seconds
        self.report(
            node.line,
            f'{what} is no duration up to {most / 86400:g} days; write one like "30s", "5m" or "2h"',
        )
        return None
