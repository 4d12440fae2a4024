"""Names of agents and tools, as rules write them: one glob or several."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from legation.approvals.policy.glob import go_glob, is_literal, literal_prefix

EVERY: Final = "*"


class NameSet(msgspec.Struct, frozen=True):
    """Globs, of which any may fit."""

    globs: tuple[str, ...]

    def holds(self, name: str) -> bool:
        return any(compiled(glob).fullmatch(name) for glob in self.globs)


def compiled(glob: str) -> re.Pattern[str]:
    found = _compiled.get(glob)
    if found is None:
        found = _compiled[glob] = go_glob(glob)
        if len(_compiled) > _KEPT:
            _compiled.pop(next(iter(_compiled)))
    return found


_KEPT: Final = 4096
_compiled: Final[dict[str, re.Pattern[str]]] = {}


def specificity(glob: str) -> tuple[int, int]:
    """Sorts the most specific first: an exact name, then the longest beginning, `*` last."""
    if is_literal(glob):
        return (0, 0)
    return (2, 0) if glob == EVERY else (1, -len(literal_prefix(glob)))
