"""The words of a shell line (POSIX and bash), with holes where the shell will put something unknown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

BLANKS: Final = " \t"
BREAKS: Final = " \t\n;&|()<>"
_NAME: Final = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*?$!#_-])", re.ASCII)
# Neither a quote nor another expansion inside, no subscript, no `@P`: those can run commands. Nor `${!x}` and
# `${x:y}`: they take the text in a variable for a name or for arithmetic, and its subscript is expanded. Nor `=`,
# which assigns.
_BRACED: Final = re.compile(
    r"\$\{#?(?:[A-Za-z_]\w*|\d+|[*?#@$!-])"
    r"(?:(?::?[+?-]|[%#/^,])[^`$(){}'\"\\@\[\]]*|: ?-?\d+(?::-?\d+)?)?\}",
    re.ASCII,
)
_TEST: Final = re.compile(r"\[\[?(?=[ \t\n;&|()<>]|$)")  # a command, and no pattern
# Of numbers only: the text in a variable is arithmetic again, and `a[$(rm x)]` in it runs the rm.
_ARITHMETIC: Final = re.compile(r"\$\(\([\d\s+*/%-]*\)\)", re.ASCII)
_NUMBERS: Final = frozenset({"$?", "$#", "$$", "$!"})
ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
# Of a variable that no program looks at, unlike PATH, HOME and http_proxy; nor zsh, where `path` is the PATH.
QUIET_NAME: Final = re.compile(
    r"(?!(?:\w*_proxy|(?:cd|f|man|mail|module_)?path|argv|aliases|commands|functions|options)$)[a-z_][a-z0-9_]*",
    re.ASCII,
)


class Unreadable(Exception):
    """What the line will run cannot be told with certainty; the words say why."""


@dataclass(slots=True)
class Word:
    """`head` is what stands before the first quote or hole: only that can be a keyword or an assignment."""

    pieces: list[str | None] = field(default_factory=list)
    head: str = ""
    is_plain: bool = True  # no quote, no escape, no hole
    splits: bool = False  # a hole may make several words of it, or one that looks like an option
    _swallows: bool = False

    def add(self, text: str, *, bare: bool = False) -> None:
        if bare and self.is_plain:
            self.head += text
        else:
            self.is_plain = False
        if self._swallows:
            return
        if self.pieces and isinstance(last := self.pieces[-1], str):
            self.pieces[-1] = last + text
        else:
            self.pieces.append(text)

    def add_hole(self, *, to_the_end: bool = False, splits: bool = False) -> None:
        self.is_plain = False
        self.splits = self.splits or splits
        if not self.pieces or self.pieces[-1] is not None:
            self.pieces.append(None)
        self._swallows = self._swallows or to_the_end

    @property
    def text(self) -> str | None:
        """What the program gets; None where a part of it is unknown."""
        return None if None in self.pieces else "".join(piece or "" for piece in self.pieces)

    @property
    def keyword(self) -> str | None:
        return self.head if self.is_plain else None

    @property
    def is_assignment(self) -> bool:
        return ASSIGNMENT.match(self.head) is not None


class Reader:
    """Reads words; `substitute` is given the text from each `$(` or backtick on, and reads the commands in it."""

    def __init__(
        self, text: str, substitute: Callable[[str, int], int], inner: Callable[[str], None]
    ) -> None:
        self.text, self.at = text, 0
        self._substitute, self._inner = substitute, inner

    @property
    def char(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip_blanks(self) -> None:
        while self.char and (self.char in BLANKS or self.text.startswith("\\\n", self.at)):
            self.at += 1 if self.char in BLANKS else 2

    def word(self) -> Word:
        word = Word()
        while self.char and self.char not in BREAKS:
            self._piece(word)
        if self.char == "(":
            raise Unreadable("a function, an array or an extended pattern")
        return word

    def _piece(self, word: Word) -> None:
        char = self.char
        if char == "\\":
            self._escape(word)
        elif char == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise Unreadable("a quote that does not end")
            word.add(self.text[self.at + 1 : end])
            self.at = end + 1
        elif char == '"':
            self._double_quoted(word)
        elif char in "$`":
            self._expansion(word, quoted=False)
        elif char == "[" and not word.pieces and (found := _TEST.match(self.text, self.at)):
            word.add(found[0], bare=True)
            self.at = found.end()
        elif char in "*?[":
            word.add_hole(splits=True)
            self.at += 1
        elif char == "{" and not self._is_empty_or_lone_brace(word):
            word.add_hole(to_the_end=True, splits=True)  # {a,b} makes several words of one
            self.at += 1
        elif char == "{" and self.text.startswith("{}", self.at):
            word.add("{}", bare=True)
            self.at += 2
        else:
            word.add(char, bare=True)
            self.at += 1

    def _is_empty_or_lone_brace(self, word: Word) -> bool:
        after = self.text[self.at + 1 : self.at + 2]
        return after == "}" or self._stands_alone(word)

    def _stands_alone(self, word: Word) -> bool:
        after = self.text[self.at + 1 : self.at + 2]
        return not word.pieces and (not after or after in BREAKS)

    def _escape(self, word: Word) -> None:
        after = self.text[self.at + 1 : self.at + 2]
        if not after:
            raise Unreadable("a backslash at the end")
        if after != "\n":
            word.add(after)
        self.at += 2

    def _double_quoted(self, word: Word) -> None:
        self.at += 1
        word.add("")
        while self.char != '"':
            if not self.char:
                raise Unreadable("a quote that does not end")
            after = self.text[self.at + 1 : self.at + 2]
            if self.char == "\\" and after and after in '$`"\\\n':
                word.add("" if after == "\n" else after)
                self.at += 2
            elif self.char in "$`":
                self._expansion(word, quoted=True)
            else:
                word.add(self.char)
                self.at += 1
        self.at += 1

    def _expansion(self, word: Word, *, quoted: bool) -> None:
        text, at = self.text, self.at
        if self.char == "`":
            self._backticks(quoted=quoted)
            word.add_hole(splits=not quoted)
        elif text.startswith("$((", at):
            self._simple(_ARITHMETIC, word, "arithmetic that may run commands", splits=False)
        elif text.startswith("$(", at):
            self.at = self._substitute(text, at + 2)
            word.add_hole(splits=not quoted)
        elif text.startswith("${", at):
            self._simple(_BRACED, word, "an expansion that may run commands", splits=not quoted)
        elif text.startswith("$[", at):
            raise Unreadable("arithmetic that may run commands")
        elif text.startswith("$'", at) and not quoted:
            self._ansi_quoted(word)
        elif text.startswith('$"', at) and not quoted:
            self.at += 1
        elif found := _NAME.match(text, at):
            self.at = found.end()
            word.add_hole(splits=not quoted and found[0] not in _NUMBERS)
        else:
            word.add("$")
            self.at += 1

    def _simple(self, form: re.Pattern[str], word: Word, why: str, *, splits: bool) -> None:
        found = form.match(self.text, self.at)
        if found is None:
            raise Unreadable(why)
        self.at = found.end()
        word.add_hole(splits=splits)

    def _ansi_quoted(self, word: Word) -> None:
        found = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL).match(self.text, self.at)
        if found is None:
            raise Unreadable("a quote that does not end")
        self.at = found.end()
        word.add_hole()  # its escapes can spell anything

    def _backticks(self, *, quoted: bool) -> None:
        found = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self.text, self.at)
        if found is None:
            raise Unreadable("a backtick that does not end")
        if quoted and '\\"' in found[1]:
            raise Unreadable(
                "quotes within backticks within quotes"
            )  # there the backslash goes before they are read
        self.at = found.end()
        self._inner(re.sub(r"\\([`$\\])", r"\1", found[1]))
