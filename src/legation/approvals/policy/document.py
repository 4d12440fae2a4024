"""YAML with the line of everything in it, and without its surprises.

YAML reads `no` as false, `010` as 8, `12:30` as 750 and `2024-01-01` as a date, and takes the last of two
equal keys. In a rulebook each of these is a mistake, and is said to be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from legation.approvals.policy.problems import shown

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
        """Without lines."""
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
    """The line; composing it would overflow the stack of the parser, which is written in C."""
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
