"""Globs and regular expressions. Globs are as Go's `filepath.Match` has them; malformed ones are refused instead of never matching.

`*` is any characters but `/`, `?` is one of them, `[a-z]` and `[^a-z]` are sets, `\\` takes the next character
as it is. A dot is a character like any other: `filesystem.*` is every tool of that server.

For values there are wider forms: in paths `**` also crosses `/`, in addresses `*` also stops at `?`, `#` and
`@`, and in a command `*` is anything, and a last ` *` also nothing: `git *` is `git` too.

Regular expressions are those that an automaton can do: no looking around, no looking back. One always means the whole
text, and `.` is any character, a newline too: an allow that was meant for a whole text must not be reached by a piece of
it, and a deny not be escaped by a line break.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from legation.approvals.policy.automaton import (
    ANY,
    ANYTHING,
    Chars,
    Either,
    Pattern,
    Repetition,
    Then,
    literal,
    one,
)

Style = Literal["path", "url", "line"]
_STOPS: Final[dict[Style, str]] = {"path": "/", "url": "/?#@\\", "line": ""}

_Item: TypeAlias = tuple[Literal["char"], str] | tuple[Literal["sign"], str] | tuple[Literal["set"], Chars]


class BadGlob(Exception):
    """A malformed glob: it says what is wrong, in words."""


@lru_cache(maxsize=4096)
def go_glob(text: str) -> re.Pattern[str]:
    """Compile one for names. As in Go, a star takes the first place where what follows fits, and never goes back to it."""
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
    """Find what every match begins with; the whole text where it is no glob at all."""
    found = ""
    for kind, item in _items(text):
        if kind != "char":
            break
        found += str(item)
    return found


def is_literal(text: str) -> bool:
    return all(kind == "char" for kind, _ in _items(text))


def glob_pattern(text: str, style: Style) -> Pattern:
    """Compile one for values, to be matched by an automaton."""
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
            found.append((ANYTHING if not stops else Repetition(one)) if item == "*" else one)
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


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CLASSES: Final = "dwsDWS"
_SPECIAL: Final = "*+?{"
_MAX_DEPTH: Final = 50
_HEX: Final = {"x": 2, "u": 4}


class BadRegex(Exception):
    """A malformed regular expression: it says what is wrong, in words."""


def parse_regex(text: str) -> Pattern:
    any_case = text.startswith("(?i)")
    text = text[4:] if any_case else text
    # The whole text is meant anyway, so that these say nothing new at its ends.
    text = text.removeprefix("^")
    if text.endswith("$") and (len(text) - len(text[:-1].rstrip("\\"))) % 2:
        text = text[:-1]
    reader = _Reader(text, any_case)
    found = reader.either(0)
    if reader.at < len(text):
        raise BadRegex("a `)` without its `(`")
    return found


class _Reader:
    def __init__(self, text: str, any_case: bool) -> None:
        self.text, self.any_case, self.at = text, any_case, 0

    def either(self, depth: int) -> Pattern:
        if depth > _MAX_DEPTH:
            raise BadRegex(f"groups deeper than {_MAX_DEPTH}")
        choices = [self._sequence(depth)]
        while self._take("|"):
            choices.append(self._sequence(depth))
        return choices[0] if len(choices) == 1 else Either(tuple(choices))

    def _sequence(self, depth: int) -> Pattern:
        items: list[Pattern] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self._repeated(self._atom(depth)))
        return items[0] if len(items) == 1 else Then(tuple(items))

    def _repeated(self, item: Pattern) -> Pattern:
        bounds = self._bounds()
        if bounds is None:
            return item
        self._take("?")  # lazy or not, the same texts fit
        if self._bounds() is not None or self._take("+"):
            raise BadRegex("two repetitions in a row")
        return Repetition(item, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._take("{"):
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at : max(end, self.at)].partition(",")
        digits = (low or "0") + (high or "0")
        if end < 0 or not (digits.isascii() and digits.isdigit()) or len(digits) > 8 or not (low or high):
            raise BadRegex("a `{` that is no repetition like {2} or {1,5}; write `\\{` for the character")
        self.at = end + 1
        least = int(low or "0")
        most = (int(high) if high else None) if comma else least
        if most is not None and most < least:
            raise BadRegex(f"a repetition from {least} to {most}")
        return least, most

    def _atom(self, depth: int) -> Pattern:
        char = self._next()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._set()
        if char == ".":
            return ANY
        if char in "^$":
            raise BadRegex(f"a `{char}` inside; it is always the whole text that must fit, so leave it out")
        if char in _SPECIAL:
            raise BadRegex(f"a `{char}` with nothing to repeat; write `\\{char}` for the character")
        if char == "\\":
            ranges, classes = self._escape()
            return Chars(ranges, classes, any_case=self.any_case)
        return one(char, self.any_case)

    def _group(self, depth: int) -> Pattern:
        if self._take("?"):
            if self._take("P<"):
                end = self.text.find(">", self.at)
                if end < 0:
                    raise BadRegex("a group's name without its `>`")
                self.at = end + 1
            elif not self._take(":"):
                raise BadRegex("a `(?`: looking around, conditions and flags inside are not supported")
        found = self.either(depth + 1)
        if not self._take(")"):
            raise BadRegex("a `(` without its `)`")
        return found

    def _set(self) -> Pattern:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        classes: list[tuple[str, bool]] = []
        first = True
        while first or not self._take("]"):
            first = False
            low, named = self._member()
            classes += named
            if low is None:
                continue
            high = low
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self._take("-")
                end, _ = self._member()
                if end is None or end < low:
                    raise BadRegex("a range in `[...]` that ends before it begins")
                high = end
            ranges.append((low, high))
        return Chars(tuple(ranges), tuple(classes), negated, self.any_case)

    def _member(self) -> tuple[str | None, tuple[tuple[str, bool], ...]]:
        if self.at >= len(self.text):
            raise BadRegex("a `[` without its `]`")
        char = self._next()
        if char != "\\":
            return char, ()
        ranges, classes = self._escape()
        return (ranges[0][0] if ranges else None), classes

    def _escape(self) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, bool], ...]]:
        if self.at >= len(self.text):
            raise BadRegex("a `\\` at the end; write `\\\\` for the character")
        char = self._next()
        if char in _CLASSES:
            return (), ((char.lower(), char.islower()),)
        if char in _HEX:
            digits = self.text[self.at : self.at + _HEX[char]]
            self.at += len(digits)
            if len(digits) < _HEX[char] or any(each not in "0123456789abcdefABCDEF" for each in digits):
                raise BadRegex(f"a `\\{char}` without its {_HEX[char]} hexadecimal digits")
            char = chr(int(digits, 16))
        elif char in _ESCAPES:
            char = _ESCAPES[char]
        elif char.isascii() and char.isalnum():
            raise BadRegex(f"a `\\{char}`, which is not supported")
        return ((char, char),), ()

    def _next(self) -> str:
        char = self.text[self.at]
        self.at += 1
        return char

    def _take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found
