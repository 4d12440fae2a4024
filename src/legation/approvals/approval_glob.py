"""The patterns that people send: Go's `filepath.Match`, as policies have it; a malformed one is refused."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from legation.approvals.policy.glob import BadGlob, go_glob
from legation.errors import InvalidParams

LONGEST: Final = 256  # characters of a pattern

# The grammar of well-formed ones without control characters, which no name has, for those who read our OpenAPI
# document. `Glob` decides.
_ANY: Final = r"[^\x00-\x1f\x7f]"
_IN_SET: Final = rf"(\\{_ANY}|[^\\\]\-\x00-\x1f\x7f])"
_RANGE: Final = f"{_IN_SET}(-{_IN_SET})?"
WELL_FORMED: Final = rf"^([^\[\\\x00-\x1f\x7f]|\\{_ANY}|\[(\^|(?!\^))({_RANGE})+\])+$"
GlobText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LONGEST,
        pattern=WELL_FORMED,
        extra_json_schema={"description": "a pattern as in Go's filepath.Match, such as filesystem.*"},
    ),
]


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
