"""Globs, as Go's `filepath.Match` has them; malformed ones are refused instead of never matching.

`*` is any characters but `/`, `?` is one of them, `[a-z]` and `[^a-z]` are sets, `\\` takes the next character
as it is. A dot is a character like any other: `filesystem.*` is every tool of that server.

For values there are wider forms: in paths `**` also crosses `/`, in addresses `*` also stops at `?`, `#` and
`@`, and in a command `*` is anything, and a last ` *` also nothing: `git *` is `git` too.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from legation.approvals.policy.automaton import ANYTHING, Chars, Either, Pattern, Repeat, Then, literal

Style = Literal["path", "url", "line"]
_STOPS: Final[dict[Style, str]] = {"path": "/", "url": "/?#@\\", "line": ""}

_Item: TypeAlias = tuple[Literal["char"], str] | tuple[Literal["sign"], str] | tuple[Literal["set"], Chars]


class BadGlob(Exception):
    """What is wrong with it, in words."""


def go_glob(text: str) -> re.Pattern[str]:
    """For names. As in Go, a star takes the first place where what follows fits, and never goes back to it."""
    chunks: list[str] = [""]
    for kind, item in _items(text):
        if kind == "sign" and item == "*":
            if chunks[-1] or len(chunks) == 1:
                chunks.append("")
        else:
            chunks[-1] += _as_regex(kind, item)
    head, *rest = chunks
    if not rest:
        return re.compile(head, re.DOTALL)
    middle = "".join(f"(?>[^/]*?{chunk})" for chunk in rest[:-1])
    return re.compile(f"{head}{middle}[^/]*{rest[-1]}", re.DOTALL)


def literal_prefix(text: str) -> str:
    """What every match begins with; the whole text where it is no glob at all."""
    found = ""
    for kind, item in _items(text):
        if kind != "char":
            break
        found += str(item)
    return found


def is_literal(text: str) -> bool:
    return all(kind == "char" for kind, _ in _items(text))


def glob_pattern(text: str, style: Style) -> Pattern:
    """For values, to be matched by an automaton."""
    stops = tuple((stop, stop) for stop in _STOPS[style])
    one = Chars(stops, negated=True)
    found: list[Pattern] = []
    items = _items(text)
    at = 0
    while at < len(items):
        kind, item = items[at]
        double = items[at : at + 2] == [("sign", "*"), ("sign", "*")]
        if style == "line" and items[at:] == [("char", " "), ("sign", "*")]:
            found.append(Either((Then(()), Then((*literal(" ").items, ANYTHING)))))
            break
        if double and style != "line":
            at += 1
            if items[at + 1 : at + 2] == [("char", "/")] and (at == 1 or items[at - 2] == ("char", "/")):
                at += 1  # `**/` is any number of folders, none too
                found.append(Either((Then(()), Then((ANYTHING, *literal("/").items)))))
            else:
                found.append(ANYTHING)
        elif kind == "sign":
            found.append((ANYTHING if not stops else Repeat(one)) if item == "*" else one)
        elif isinstance(item, Chars):
            found.append(item)
        else:
            found += literal(item).items
        at += 1
    return Then(tuple(found))


def _as_regex(kind: str, item: str | Chars) -> str:
    if isinstance(item, Chars):
        ranges = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in item.ranges)
        if not ranges:
            return "." if item.negated else "(?!)"
        return f"[{'^' if item.negated else ''}{ranges}]"
    return "[^/]" if kind == "sign" else re.escape(item)


def _items(text: str) -> list[_Item]:
    found: list[_Item] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char in "*?":
            found.append(("sign", char))
            at += 1
        elif char == "[":
            chars, at = _set(text, at + 1)
            found.append(("set", chars))
        else:
            plain, at = _char(text, at)
            found.append(("char", plain))
    return found


def _set(text: str, at: int) -> tuple[Chars, int]:
    negated = text.startswith("^", at)
    at += negated
    ranges: list[tuple[str, str]] = []
    listed = False
    while not (listed and text.startswith("]", at)):
        listed = True
        low, at = _set_char(text, at)
        high = low
        if text.startswith("-", at):
            high, at = _set_char(text, at + 1)
        if low <= high:  # Go takes a range that ends before it begins, and it holds nothing
            ranges.append((low, high))
    return Chars(tuple(ranges), negated=negated), at + 1


def _set_char(text: str, at: int) -> tuple[str, int]:
    if at >= len(text):
        raise BadGlob("a `[` without its `]`")
    if text[at] in "-]":
        raise BadGlob(f"a `{text[at]}` out of place in `[...]`; write `\\{text[at]}` for the character")
    return _char(text, at)


def _char(text: str, at: int) -> tuple[str, int]:
    if text[at] != "\\":
        return text[at], at + 1
    if at + 1 >= len(text):
        raise BadGlob("a `\\` at the end; write `\\\\` for the character")
    return text[at + 1], at + 2
