"""A value that hides itself: `reveal()` alone gives it, so that every place that can leak it can be searched for.

It lives in a closure, not in an attribute: whatever walks objects (vars, asdict, serialisers, tracebacks with
locals) finds nothing to print.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn, Self, SupportsIndex, final

from legation.errors import InvalidParams

# The name stands in markers inside JSON text and in logs, hence the narrow alphabet.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME: Final = re.compile(
    r"(^|_)(api_?key|(access|private|secret|signing)_?key|([a-z]+_?)?token|password|passwd|passphrase|pwd|secrets?|"
    r"credentials?|authorization|cookie|bearer)(_|$)"
)


@final
class Secret:
    __slots__ = ("_name", "reveal")

    def __init__(self, value: str, name: str = "secret") -> None:
        if fault := _fault(value, name):
            del self, value, name  # a traceback with locals shows this frame, and the two may be swapped
            raise InvalidParams(fault)
        self._name = name
        self.reveal: Callable[[], str] = lambda: value

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<secret {self._name}>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        from hmac import compare_digest  # brings OpenSSL with it; most commands never compare

        return compare_digest(self.reveal().encode(), other.reveal().encode())

    def __hash__(self) -> int:
        return hash((Secret, self.reveal()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"cannot pickle {self!r}: hand it over in memory, or reveal it where it is sealed")


def _fault(value: str, name: str) -> str | None:
    if not _NAME.fullmatch(name):
        return "cannot name a secret so: use 1 to 128 of the letters, digits, '_', '.', ':' and '-'"
    if not value:
        return f"cannot hold an empty secret as {name}: give it a value or leave it out"
    if any("\ud800" <= char <= "\udfff" for char in value):
        return f"cannot hold secret {name}: it is not valid Unicode; store it as base64 text instead"
    return None


def looks_secret(name: str) -> bool:
    """Tell by its name whether a member, a variable or a header holds a secret."""
    return _SECRET_NAME.search(_HUMP.sub("_", name).lower().replace("-", "_")) is not None
