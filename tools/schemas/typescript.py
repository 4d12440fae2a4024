"""TypeScript declarations (`.d.ts`), as far as they describe JSON. What does not, functions above all, is `any`.

Generics other than the built-in ones lose their arguments, and `Omit` and `Pick` what they take away: names and
types of messages are the matter here, not a type checker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from tools.schemas.expression import (
    ANY,
    NULL,
    Field,
    List,
    Literal,
    Map,
    Name,
    Object,
    Type,
    both,
    union,
)

_TOKEN: Final = re.compile(
    r"""\s+|/\*.*?\*/|//[^\n]*|(?P<token>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`
    |=>|\.\.\.|-?\d[\w.]*|[\w$]+(?:\.[\w$]+)*|.)""",
    re.DOTALL | re.VERBOSE,
)
_WORDS: Final[dict[str, Type]] = {
    **{word: Name(word) for word in ("string", "number", "boolean", "never", "object")},
    **{word: Literal(word) for word in ("true", "false")},
    **{word: Name("never") for word in ("undefined", "void")},
    **dict.fromkeys(("any", "unknown", "symbol", "bigint", "this"), ANY),
    "null": NULL,
    "Date": Name("string"),
}
_AS_THEIR_ARGUMENT: Final = ("Partial", "Readonly", "Required", "NonNullable", "Omit", "Pick", "Exclude")
_CLOSES: Final = {"{": "}", "(": ")", "[": "]", "<": ">"}
END: Final = ""


def types_of(text: str) -> dict[str, Type]:
    """Every `type` and `interface` at the top of a file."""
    reader = _Reader([each["token"] for each in _TOKEN.finditer(text) if each["token"]])
    return dict(reader.declarations())


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def declarations(self) -> Iterator[tuple[str, Type]]:
        while (word := self._take()) != END:
            if word == "type" and self._after_name() in ("=", "<"):
                name = self._take()
                self._skip_generics()
                self._expect("=")
                yield name, self.union()
            elif word == "interface":
                yield self._take(), self._interface()
            elif word in ("namespace", "class", "import", "function", "const"):
                self._skip_statement()

    def _after_name(self) -> str:
        return self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else END

    def _interface(self) -> Type:
        self._skip_generics()
        parents: list[Type] = []
        while self._peek() != "{" and self._take() != END:
            parents.append(self._primary())
        return both([*parents, self._primary()])

    def _skip_statement(self) -> None:
        """To its semicolon, or to the end of its block."""
        while (word := self._take()) not in (";", END):
            if word in ("{", "(", "["):
                self._skip_to(_CLOSES[word])
                if word == "{" and self._peek() not in ("from", ";"):
                    return

    def _skip_generics(self) -> None:
        if self._peek() == "<":
            self._take()
            self._skip_to(">")

    def _skip_to(self, closing: str) -> None:
        while (word := self._take()) not in (closing, END):
            if word in _CLOSES and (word != "<" or closing == ">"):
                self._skip_to(_CLOSES[word])

    def union(self) -> Type:
        found = union([each for each in self._separated("|", self._both) if each != Name("never")])
        if self._peek() == "extends":  # a conditional type
            self._take()
            self.union()
            for expected in ("?", ":"):
                self._expect(expected)
                self.union()
            return ANY
        return found

    def _both(self) -> Type:
        return both(list(self._separated("&", self._postfix)))

    def _separated(self, by: str, inner: Callable[[], Type]) -> Iterator[Type]:
        if self._peek() == by:
            self._take()
        yield inner()
        while self._peek() == by:
            self._take()
            yield inner()

    def _postfix(self) -> Type:
        found = self._primary()
        while self._peek() == "[":
            self._take()
            if self._peek() == "]":
                found = List(found)
            else:
                self.union()
                found = ANY  # what a field of another type is
            self._expect("]")
        return found

    def _primary(self) -> Type:
        word = self._take()
        match word:
            case "{":
                return self._object()
            case "[":
                return List(union(list(self._items("]"))))
            case "(":
                return self._parenthesis()
            case "readonly":
                return self._postfix()
            case "keyof":
                self._postfix()
                return Name("string")
            case "typeof" | "new" | "infer" | "unique":
                self._postfix()
                return ANY
            case "<":
                self._skip_to(">")
                return self._postfix()
        if word[0] in "'\"":
            return Literal.of(_unquoted(word))
        if word[0] == "`":
            return Name("string")
        return Literal(word) if word.lstrip("-")[:1].isdigit() else self._named(word)

    def _parenthesis(self) -> Type:
        start = self._at
        self._skip_to(")")
        if self._peek() == "=>":  # a function
            self._take()
            self.union()
            return ANY
        self._at = start
        found = self.union()
        self._expect(")")
        return found

    def _named(self, word: str) -> Type:
        arguments: list[Type] = []
        if self._peek() == "<":
            self._take()
            arguments = list(self._items(">"))
        if word in ("Array", "ReadonlyArray", "Set"):
            return List(arguments[0])
        if word in ("Record", "Map"):
            return Map(arguments[-1])
        if word in _AS_THEIR_ARGUMENT and arguments:
            return arguments[0]
        # The last part of `module.Name`; one of another package is a name without a definition.
        return _WORDS.get(word) or Name(word.rpartition(".")[2])

    def _items(self, closing: str) -> Iterator[Type]:
        while self._peek() not in (closing, END):
            if self._peek() == "...":
                self._take()
            if self._after_name() == ":":  # a named place of a tuple
                self._at += 2
            yield self.union()
            if self._peek() == ",":
                self._take()
        self._expect(closing)

    def _object(self) -> Type:
        fields: dict[str, Field] = {}
        others: Type | None = None
        while (word := self._take()) not in ("}", END):
            if word in (";", ",") or (word == "readonly" and self._peek() not in (":", "?")):
                continue
            if word == "[":
                mapped = self._after_name() == "in"
                self._skip_to("]")
                value = self._value()
                others = ANY if mapped else value
                continue
            name = _unquoted(word) if word[0] in "'\"" else word
            required = self._peek() != "?"
            fields[name] = Field(self._value(), required)
        return Object(fields, others)

    def _value(self) -> Type:
        """After a field's name: its type, or a method."""
        while self._peek() in ("?", "-", "+"):
            self._take()
        if self._peek() in ("(", "<"):
            self._skip_generics()
            self._take()
            self._skip_to(")")
            if self._peek() == ":":
                self._take()
                self.union()
            return ANY
        self._expect(":")
        return self.union()

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else END

    def _take(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def _expect(self, word: str) -> None:
        if (found := self._take()) != word:
            near = " ".join(self._tokens[max(self._at - 12, 0) : self._at + 3])
            raise ValueError(f"{found!r} where {word!r} should be, near: {near}")


def _unquoted(token: str) -> str:
    body = token[1:-1].replace("\\'", "'")
    return body if "\\" not in body else str(msgspec.json.decode(f'"{body}"'))
