"""The patterns that people send: Go's `filepath.Match`, as policies have it; a malformed one is refused."""

from __future__ import annotations

from typing import Final

from legation.approvals.policy.glob import BadGlob, go_glob
from legation.errors import InvalidParams

LONGEST: Final = 256  # characters of a pattern


class Glob:
    """`Glob("filesystem.*").matches("filesystem.read_file")`."""

    __slots__ = ("_matches", "text")

    def __init__(self, text: str) -> None:
        if not text or len(text) > LONGEST:
            raise InvalidParams(f"cannot use a pattern that is empty or longer than {LONGEST} characters")
        try:
            self._matches = go_glob(text).fullmatch
        except BadGlob as fault:
            raise InvalidParams(f"cannot use the pattern: {fault}; correct it, or escape with \\") from None
        self.text = text

    def __repr__(self) -> str:
        return f"Glob({self.text!r})"

    def matches(self, name: str) -> bool:
        return self._matches(name) is not None
