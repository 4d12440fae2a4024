"""The command line that the model wrote, out of the one that Codex runs: `/bin/bash -lc 'make test'`."""

from __future__ import annotations

import shlex
from typing import Final

# Only the system's own shells: a program of another place may do anything with the same words.
_SHELLS: Final = frozenset(
    f"{folder}/{name}" for folder in ("/bin", "/usr/bin", "/usr/local/bin") for name in ("bash", "sh", "zsh")
)
_RUN: Final = frozenset(("-c", "-lc"))


def inner_command(command: str) -> str:
    """As it is where it is in no such wrapping."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    wrapped = len(words) == 3 and words[0] in _SHELLS and words[1] in _RUN
    return words[2] if wrapped else command
