"""From a path to its operations: a dictionary for fixed paths, a tree of segments for the templates.

A fixed segment is preferred to a parameter. The raw path is matched, so that `%2F` is part of a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from legation.errors import InvalidParams
from legation.server.http.operations import Operation
from legation.server.http.parameters import decode_segment

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class Resource:
    """A path and what can be done with it."""

    path: str
    operations: dict[str, Operation] = field(default_factory=dict)
    allow: str = ""  # every method, as the Allow header lists them

    def add(self, operation: Operation) -> None:
        if operation.method in self.operations:
            raise TypeError(f"cannot declare {operation.method} {operation.path} twice: remove one")
        self.operations[operation.method] = operation
        if operation.method == "GET":
            self.operations["HEAD"] = operation
        self.allow = ", ".join(sorted(self.operations))


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    resource: Resource | None = None
    names: tuple[str, ...] = ()

    def find(self, segments: list[str], at: int) -> tuple[_Node, tuple[str, ...]] | None:
        if at == len(segments):
            return (self, ()) if self.resource else None
        segment = segments[at]
        if (fixed := self.fixed.get(segment)) and (found := fixed.find(segments, at + 1)):
            return found
        if self.parameter and segment and (found := self.parameter.find(segments, at + 1)):
            return found[0], (segment, *found[1])
        return None


class Router:
    def __init__(self, operations: Iterable[Operation]) -> None:
        self._fixed: dict[str, Resource] = {}
        self._root = _Node()
        for operation in operations:
            self._add(operation)

    def find(self, raw_path: bytes) -> tuple[Resource, Mapping[str, str], InvalidParams | None] | None:
        """The resource, its path parameters, and what is wrong with their percent-encoding.

        That is not raised: who may call the resource at all is asked first."""
        path = raw_path.decode("latin-1")
        if (resource := self._fixed.get(path)) is not None:
            return resource, _NOTHING, None
        segments, broken = path.split("/")[1:], None
        if "%" in path:
            for at, each in enumerate(segments):
                try:
                    segments[at] = decode_segment(each)
                except InvalidParams as error:
                    broken = error  # the segment stays as it is, and is no fixed one
        found = self._root.find(segments, 0)
        if found is None or found[0].resource is None:
            return None
        return found[0].resource, dict(zip(found[0].names, found[1], strict=True)), broken

    def _add(self, operation: Operation) -> None:
        node, names = self._root, []
        for segment in operation.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        if node.resource is None:
            node.resource, node.names = Resource(operation.path), tuple(names)
        if node.resource.path != operation.path:
            raise TypeError(f"cannot declare {operation.path} beside {node.resource.path}: name it the same")
        node.resource.add(operation)
        if not names:
            self._fixed[operation.path] = node.resource
