"""A shell line, taken apart into the simple commands that it runs.

INV-P2  Whatever the shell itself would start stands among the parts, or the line is unreadable. An unreadable line
        fits no allow and every deny that looks at commands. What a started program goes on to start is looked at
        for the usual wrappers only (sudo, env, xargs, `bash -c`, `find -exec`, ...).

A part is the text of one simple command, its words unquoted and joined by single spaces. `A=1 sudo git push
> log` is four parts, and a policy decides on each: `A=1 sudo git push`, `sudo git push`, `git push`, `> log`.
So an allow for `git *` is not an allow for sudo, while a deny for `git push*` is not escaped by it.

This module reads what most lines are, without a program of its own; what it cannot read is left to lines.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final

import msgspec

from legation.approvals.policy.shell.words import (
    QUIET_NAME,
    SPECIAL,
    Inner,
    ShellScript,
    Unreadable,
    Word,
    WordReader,
    look_into,
    must_not_wrap,
)

MAX_LINE: Final = 32 * 1024  # characters
MAX_PARTS: Final = 100
_MAX_DEPTH: Final = 12
_KEPT_LINES: Final = 256

Part = tuple[str | None, ...]
"""The text of a simple command; None stands for what the shell will put there."""

# Words that stand before a command and are none.
_BEFORE: Final = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "fi", "done", "}"}
)
_UNREADABLE_WORDS: Final = frozenset({"case", "esac", "select", "function", "coproc", "[[", "]]"})
HARMLESS_TARGETS: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin"})
_REDIRECTION: Final = re.compile(r"&>>|&>|<<<|<<|<>|>>|>\||>&|<&|<|>")
_NUMBER: Final = re.compile(r"[0-9]+")
_EASY: Final = re.compile(r"([A-Za-z0-9_.,:@%+-]+)(?: [A-Za-z0-9_./,:@%+=-]+)*", re.ASCII)


class ShellLine(msgspec.Struct, frozen=True):
    """A line and its parts. `unreadable` says why there are none."""

    parts: tuple[Part, ...] = ()
    unreadable: str | None = None


def split(text: str) -> ShellLine:
    easy = _EASY.fullmatch(text)  # most lines are, and then the text is its only part
    if easy and easy[1] not in SPECIAL and easy[1] not in _BEFORE and len(text) <= MAX_LINE:
        return ShellLine(((text,),))
    return _split(text)


@lru_cache(_KEPT_LINES)
def _split(text: str) -> ShellLine:
    if len(text) > MAX_LINE:
        return ShellLine(unreadable=f"longer than {MAX_LINE} characters")
    if "\0" in text:
        return ShellLine(unreadable="a NUL character")
    parts = Parts(_read)
    try:
        parts.read(text, 0)
    except Unreadable as error:
        return ShellLine(unreadable=str(error))
    return parts.line


def begun(text: str) -> tuple[Part, ...]:
    """List what was found of a line before it could not be read any more: for a person to look at, never to decide by."""
    parts = Parts(_read)
    with suppress(Unreadable):
        parts.read(text[:MAX_LINE], 0)
    return tuple(dict.fromkeys(parts.found))


def _read(parts: Parts, text: str, depth: int) -> None:
    _Commands(parts, text, 0, depth).run(closing=False)


class Parts:
    """The parts that were found so far. `reader` takes the text of a shell apart: this module, or another one."""

    def __init__(self, reader: Callable[[Parts, str, int], None]) -> None:
        self.found: list[Part] = []
        self._reader = reader

    @property
    def line(self) -> ShellLine:
        return ShellLine(tuple(dict.fromkeys(self.found)) or (("",),))

    def read(self, text: str, depth: int) -> None:
        self.must_be_shallow(depth)
        self._reader(self, text, depth)

    def must_be_shallow(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise Unreadable("too many commands within commands")

    def add(self, part: Part) -> None:
        if len(self.found) >= MAX_PARTS:
            raise Unreadable(f"more than {MAX_PARTS} commands")
        self.found.append(part)

    def add_redirection(self, sign: str, target: Word) -> None:
        """Add the file that is read or written, unless it is none or harmless."""
        if not target.pieces:
            raise Unreadable("a redirection to nowhere")
        if sign in (">&", "<&") and re.fullmatch(r"\d*-?", target.keyword or "x"):
            return
        if target.text in HARMLESS_TARGETS:
            return
        self.add_redirected("<<<" if sign == "<<<" else "<" if sign in ("<", "<&") else ">", target)

    def add_redirected(self, sign: str, word: Word) -> None:
        shown = Word()
        shown.add(f"{sign} ")
        shown.append(word)
        self.add(tuple(shown.pieces))

    def add_variable(self, name: Word) -> None:
        """Add one that a loop fills: `for PATH in ...` is an assignment like any other."""
        if name.keyword is None:
            raise Unreadable("a loop over words that are not known")
        if not QUIET_NAME.fullmatch(name.keyword):
            self.add((f"{name.keyword}=", None))

    def add_command(self, words: list[Word], depth: int) -> None:
        self.must_be_shallow(depth)
        if not words:
            return
        if words[0].keyword in _BEFORE | _UNREADABLE_WORDS:
            raise Unreadable("a compound command that is not looked into")  # as in `time { ...; }`
        if (
            not words[0].is_assignment
            and None in words[0].pieces
            and any("]=" in (piece or "") for piece in words[0].pieces)
        ):
            raise Unreadable("an array")  # its subscript is arithmetic, which may run commands
        self.add(text_of(words))
        assigned = next((at for at, word in enumerate(words) if not word.is_assignment), len(words))
        if assigned:
            self.add_command(words[assigned:], depth + 1)
            return
        name = words[0].text
        if name is None:
            must_not_wrap(words[0])
            return  # an unknown program: its part begins with a hole, or ends in one
        if "/" in name:
            # `/bin/rm` is rm to a deny, and `./git` is not git to an allow.
            base = Word([name.rsplit("/", 1)[-1]])
            self.add_command([base, *words[1:]], depth + 1)
            return
        for inner in look_into(name, words):
            self._add_inner(inner, depth + 1)

    def _add_inner(self, inner: Inner, depth: int) -> None:
        if isinstance(inner, ShellScript):
            self.read(inner.text, depth)
        else:
            self.add_command(inner, depth)


class _Commands:
    """One list of commands: a line, or what stands in parentheses."""

    def __init__(self, parts: Parts, text: str, at: int, depth: int) -> None:
        self._parts, self._depth = parts, depth
        self._reader = WordReader(text, self._substitution, lambda inner: parts.read(inner, depth + 1))
        self._reader.at = at
        self._words: list[Word] = []
        self._loops_over = False  # after `for`: words, not a command

    def _substitution(self, text: str, at: int) -> int:
        self._parts.must_be_shallow(self._depth + 1)
        return _Commands(self._parts, text, at, self._depth + 1).run(closing=True)

    def run(self, *, closing: bool) -> int:
        """Read to its `)`, or to the end of the text; return where it ended."""
        reader = self._reader
        while True:
            reader.skip_blanks()
            char = reader.char
            if not char or char == ")":
                if closing != (char == ")"):
                    raise Unreadable("a parenthesis without its other half")
                self._end_command()
                return reader.at + len(char)
            self._token(char)

    def _token(self, char: str) -> None:
        reader = self._reader
        if char in "<>" or reader.text.startswith("&>", reader.at):
            self._redirection()
        elif char in "\n;&|":
            if reader.text.startswith(";;", reader.at):
                raise Unreadable("a case")
            self._end_command()
            reader.at += 1
        elif char == "(":
            self._subshell()
        elif char == "#":
            end = reader.text.find("\n", reader.at)
            reader.at = len(reader.text) if end < 0 else end
        else:
            self._word()

    def _subshell(self) -> None:
        reader = self._reader
        if self._words or self._loops_over or reader.text.startswith("((", reader.at):
            raise Unreadable("a function, an array or arithmetic")
        reader.at = self._substitution(reader.text, reader.at + 1)

    def _word(self) -> None:
        reader = self._reader
        word = reader.word()
        if reader.char and reader.char in "<>" and _NUMBER.fullmatch(word.keyword or ""):
            return  # the number of what is redirected
        if not self._words and not self._loops_over:
            if word.keyword in _BEFORE:
                return
            if word.keyword in _UNREADABLE_WORDS:
                raise Unreadable("a compound command that is not looked into")
            if word.keyword == "for":
                self._loops_over = True
                return
        self._words.append(word)
        if self._loops_over and len(self._words) == 2 and word.keyword == "do":
            self._parts.add_variable(self._words[0])
            self._words, self._loops_over = [], False  # `for x do ...`, over the arguments

    def _end_command(self) -> None:
        words, self._words = self._words, []
        if self._loops_over:
            self._loops_over = False
            if words:
                self._parts.add_variable(words[0])
            return
        self._parts.add_command(words, self._depth)

    def _redirection(self) -> None:
        reader = self._reader
        found = _REDIRECTION.match(reader.text, reader.at)
        sign = found[0] if found else reader.char
        if sign == "<<":
            raise Unreadable("a here-document")
        reader.at += len(sign)
        if reader.char == "(":
            raise Unreadable("a process substitution")
        reader.skip_blanks()
        self._parts.add_redirection(sign, reader.word())


def text_of(words: list[Word]) -> Part:
    """Join the words unquoted, so that no quote hides one; but a program's odd name stays apart from its words."""
    joined = Word()
    for at, word in enumerate(words):
        # A word that is nothing but a hole may come to nothing, and its space with it.
        if at and words[at - 1].pieces != [None]:
            joined.add(" ")
        odd = not at and re.search(r"\s", word.text or "") is not None
        if odd:
            joined.add("'")
        joined.append(word)
        if odd:
            joined.add("'")
    return tuple(joined.pieces) or ("",)
