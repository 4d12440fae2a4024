"""Reading one file of the owner: every value is checked, and every mistake is noted with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from legation.approvals.policy.document import Node
from legation.approvals.policy.glob import BadGlob, go_glob
from legation.approvals.policy.problems import Problems, shown, unknown

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
MAX_TEXT: Final = 2000  # characters of a message or a pattern
WEEK: Final = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Source:
    file: str
    problems: Problems

    def report(self, line: int, what: str) -> None:
        self.problems.add(self.file, line, what)

    def place(self, node: Node) -> str:
        return f"{self.file}:{node.line}"

    def map(self, node: Node, what: str, known: Iterable[str]) -> dict[str, Node]:
        """Its members, of which all are known."""
        if not isinstance(node.value, dict):
            self.report(node.line, f"{what} is no map; write `key: value` lines")
            return {}
        words = tuple(known)
        for key, inner in node.value.items():
            if key not in words:
                self.report(inner.line, unknown(f"key of {what}", key, words))
        return {key: inner for key, inner in node.value.items() if key in words}

    def items(self, node: Node, what: str) -> list[Node]:
        """Of a list that has some."""
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
        """For names; malformed ones are refused."""
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
