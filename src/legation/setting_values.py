"""Readers of settings' values: each takes what a flag, a variable or the file gave, and says what is wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar, cast, get_args
from urllib.parse import urlsplit

from legation.errors import InvalidParams
from legation.secret import Secret

T = TypeVar("T")
LogLevel = Literal["debug", "info", "warning", "error", "critical"]

_QUANTITY: Final = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)
_SECONDS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES: Final = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class Unusable(Exception):
    """A value or a file that cannot be used: what is wrong, and what to write instead."""


def _quantity(value: object, least: float, most: float, units: Mapping[str, float], hint: str) -> float:
    if isinstance(value, str) and (text := _QUANTITY.fullmatch(value)) and text[2].lower() in units:
        value = float(text[1]) * units[text[2].lower()]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unusable(f"is not understood: write {hint}")
    if not least <= value <= most:  # neither infinity nor nan is
        raise Unusable(f"is out of range: write {hint}, at least {least:.15g} and at most {most:.15g}")
    return float(value)


@dataclass(frozen=True)
class Duration:
    """Seconds: a number, or a text with a unit."""

    least: float
    most: float
    hint: str = 'seconds, or a text like "90s", "10m" or "1h"'

    def __call__(self, value: object) -> float:
        return _quantity(value, self.least, self.most, _SECONDS, self.hint)


@dataclass(frozen=True)
class ByteSize:
    """Bytes: a number, or a text with a unit."""

    least: int
    most: int

    def __call__(self, value: object) -> int:
        hint = 'bytes, or a text like "512KiB" or "32MiB"'
        return int(_quantity(value, self.least, self.most, _BYTES, hint))


@dataclass(frozen=True)
class Number:
    least: int
    most: int

    def __call__(self, value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return value
        raise Unusable(f"is not understood: write a number from {self.least} to {self.most}")


@dataclass(frozen=True)
class Matching:
    """A text of one pattern."""

    pattern: str
    hint: str

    def __call__(self, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        raise Unusable(f"is not understood: write {self.hint}")


class WebAddress(Matching):
    """A text that can be taken apart: `http://[::1` looks like one, and has no host."""

    def __call__(self, value: object) -> str:
        found = super().__call__(value)
        try:
            parts = urlsplit(found)
            named = parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            named = False
        if not named:
            raise Unusable(f"is not understood: write {self.hint}")
        return found


@dataclass(frozen=True)
class WordList:
    """A list in the file; elsewhere a text with commas."""

    word: Matching

    def __call__(self, value: object) -> tuple[str, ...]:
        words = value if isinstance(value, list) else str(value).split(",")
        return tuple(
            self.word(each.strip() if isinstance(each, str) else each) for each in words if each != ""
        )


@dataclass(frozen=True)
class SecretText:
    name: str
    pattern: str = r".+"
    hint: str = "it as text"

    def __call__(self, value: object) -> Secret:
        if isinstance(value, str) and re.fullmatch(self.pattern, value, re.DOTALL):
            with suppress(InvalidParams):  # not Unicode
                return Secret(value, self.name)
        raise Unusable(f"is not understood: write {self.hint}")


@dataclass(frozen=True)
class Optional(Generic[T]):
    """A value or none, which the empty text stands for: it is the default, and a variable cannot be unset in every place."""

    read: Callable[[object], T]

    def __call__(self, value: object) -> T | None:
        return None if value == "" else self.read(value)


@dataclass(frozen=True)
class UnlessNever(Generic[T]):
    """A value, or `never`, which is None."""

    read: Callable[[object], T]

    def __call__(self, value: object) -> T | None:
        return None if value == "never" else self.read(value)


def read_log_level(value: object) -> LogLevel:
    for level in get_args(LogLevel):
        if isinstance(value, str) and value.lower() == level:
            return cast(LogLevel, level)
    raise Unusable(f"is not understood: write one of {', '.join(get_args(LogLevel))}")


def read_folder(value: object) -> Path:
    if isinstance(value, str | Path) and "\0" not in str(value) and Path(value).is_absolute():
        return Path(value)
    raise Unusable('is not understood: write an absolute path, or one that starts with "~/"')


def read_folders(value: object) -> tuple[Path, ...]:
    words = value if isinstance(value, list) else [value]
    return tuple(read_folder(word) for word in words if word != "")


def read_port(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535:
        return value
    raise Unusable("is not understood: write a number from 1 to 65535, or 0 for any free one")


def read_truth(value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False, "1": True, "0": False}.get(value.lower())
    if isinstance(value, bool):
        return value
    raise Unusable("is not understood: write true or false")


def read_command(value: object) -> tuple[str, ...]:
    """A list in the file; elsewhere one text, split as a shell would."""
    try:
        words = value if isinstance(value, list) else shlex.split(str(value))
    except ValueError as error:
        raise Unusable(f"is not understood ({error}): check its quotes") from None
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        raise Unusable("is not understood: write the program and its arguments")
    return tuple(words)
