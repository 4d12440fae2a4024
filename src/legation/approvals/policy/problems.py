"""All that is wrong with the owner's files, each with its place and the word that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from legation.errors import ConfigInvalid

_SHOWN: Final = 60  # characters of a word from the file
_MOST: Final = 100  # problems that are listed


@dataclass(slots=True)
class Problems:
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
    """`unknown action 'denny'; did you mean 'deny'?`"""
    words = list(known)
    near = nearest(word, words)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(words)}"
    return f"unknown {what} {shown(word)}; {hint}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    from difflib import get_close_matches  # only a mistake needs it

    words = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), words, n=1, cutoff=cutoff)
    return words[near[0]] if near else None
