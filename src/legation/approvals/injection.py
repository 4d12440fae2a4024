"""The injection signal: whether what an agent wants to do looks as if somebody else had put it up to it."""

from __future__ import annotations

from typing import Protocol

from legation.wire.action import Action


class Signal(Protocol):
    def __call__(self, action: Action) -> bool: ...


def nothing(action: Action) -> bool:  # noqa: ARG001 - the one that finds nothing
    return False
