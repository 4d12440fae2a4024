"""How an agent begins in a folder, where Legation knows more of it than its protocol says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from legation.errors import Forbidden
from legation.store.trust import is_repository_root


@dataclass(frozen=True, slots=True)
class AskingModes:
    """Modes of one agent, by what it calls them: in which it asks, the best first, and in which it does not. For names
    that do not say it themselves (`host/modes.py` knows those that do)."""

    asking: tuple[str, ...] = ()
    unasking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of sessions by ACP.

    `meta` is the `_meta` of `session/new`, `session/load` and `session/resume`. With `mode` a session that begins in
    another one is put into that, unless the other is among `keeps`. None begins in a folder that has what it `obeys`.
    """

    meta: Mapping[str, object] = field(default_factory=dict)
    mode: str | None = None
    keeps: tuple[str, ...] = ()
    obeys: tuple[str, ...] = ()


def must_not_be_obeyed(folder: Path, patterns: tuple[str, ...]) -> None:
    """There is nothing in the folder, or above it in its repository, that an agent would act on unasked. Blocks."""
    if not patterns:
        return
    for place in _to_the_root(folder):
        for pattern in patterns:
            if found := next(iter(place.glob(pattern)), None):
                raise Forbidden(
                    f"cannot start it in {folder}: it would act on {found}, whatever it is told; look at that, then "
                    "trust the folder with `legation trust`, or use another agent"
                )


def _to_the_root(folder: Path) -> Iterator[Path]:
    """The folder and those above it, up to the root of the repository; all of them where there is none."""
    real = folder.resolve()
    for place in (real, *real.parents):
        yield place
        if is_repository_root(place):
            return
