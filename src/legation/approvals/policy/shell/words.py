"""The words of a shell line (POSIX and bash), with holes where the shell will put something unknown.

What a program runs that runs another (`sudo`, `env`, `xargs`, ...) is looked at too. Options are known by name. One that is
not known could take the next word with it, so that the program behind it could not be told: the line is unreadable then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import msgspec

BLANKS: Final = " \t"
BREAKS: Final = " \t\n;&|()<>"
_VARIABLE: Final = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*?$!#_-])", re.ASCII)
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
    """A line of which cannot be told with certainty what it will run; the words say why."""


class Word(msgspec.Struct):
    """A word of a line. `head` is what stands before the first quote or hole: only that can be a keyword or an assignment."""

    pieces: list[str | None] = msgspec.field(default_factory=list)
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

    def append(self, other: Word) -> None:
        self.splits = self.splits or other.splits
        for piece in other.pieces:
            if piece is None:
                self.add_hole()
            else:
                self.add(piece)

    @property
    def text(self) -> str | None:
        """The text that the program gets; None where a part of it is unknown."""
        return None if None in self.pieces else "".join(piece or "" for piece in self.pieces)

    @property
    def keyword(self) -> str | None:
        return self.head if self.is_plain else None

    @property
    def is_assignment(self) -> bool:
        return ASSIGNMENT.match(self.head) is not None


class WordReader:
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
        elif found := _VARIABLE.match(text, at):
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


class ShellScript(msgspec.Struct, frozen=True):
    """Text for a shell."""

    text: str


Inner: TypeAlias = list[Word] | ShellScript


class _Wrapper(msgspec.Struct, frozen=True):
    flags: str = ""  # letters of options that stand alone
    valued: str = ""  # letters of options that take a value
    operands: int = 0  # words before the command
    long_flags: tuple[str, ...] = ()
    assigns: bool = False  # A=1 may stand before the command


_WRAPPERS: Final = {
    "sudo": _Wrapper("AbEHiKknPSs", "CDghpRrTtUu", assigns=True),
    "doas": _Wrapper("Lns", "aCu"),
    "env": _Wrapper("i0v", "uC", long_flags=("ignore-environment",), assigns=True),
    "nice": _Wrapper("", "n"),
    "ionice": _Wrapper("t", "cn"),
    "nohup": _Wrapper(),
    "time": _Wrapper("pvaq", "fo"),
    "timeout": _Wrapper("v", "ks", 1, ("preserve-status", "foreground", "verbose")),
    "stdbuf": _Wrapper("", "ioe"),
    "setsid": _Wrapper("cfw"),
    "command": _Wrapper("pvV"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cl", "a"),
    "taskset": _Wrapper("a", "", 1),
    "chrt": _Wrapper("bfior", "", 1),
    "flock": _Wrapper("eFnosux", "Ew", 1),
    "chroot": _Wrapper("", "", 1),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "xargs": _Wrapper("0prtxo", "adEILnPs", long_flags=("null", "no-run-if-empty", "verbose")),
}
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash"})
_SHELL_LONG: Final = frozenset({"--login", "--norc", "--noprofile", "--posix", "--restricted", "--verbose"})
# They run text that only they know, or change what later words mean.
_OPAQUE: Final = frozenset(
    {"eval", "trap", "alias", "su", "watch", "parallel", "script", "runuser", "fc", "let"}
    | {"compgen", "complete", "bind"}
    | {"emulate", "noglob", "nocorrect", "repeat", "sched"}  # zsh's
)
_RUNS: Final = {"jobs": "-x", "mapfile": "-C", "readarray": "-C"}  # options that run a command
_TESTS: Final = frozenset({"[", "test"})
_DECLARES: Final = frozenset({"declare", "typeset", "local", "readonly"})
_FILLS: Final = frozenset({"read", "mapfile", "readarray", "unset", "wait", "getopts"})
_SOURCES: Final = frozenset({"source", "."})
_OPEN_FILES: Final = ("/dev/stdin", "/dev/fd/", "/proc/")  # what they hold stands elsewhere in the line
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SUBSCRIPT: Final = re.compile(r"[A-Za-z_]\w*\[", re.ASCII)
_FIND_RUNS: Final = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FINDERS: Final = frozenset({"find", "gfind"})

SPECIAL: Final = (
    frozenset(_WRAPPERS)
    | _SHELLS
    | _OPAQUE
    | _FINDERS
    | _TESTS
    | _DECLARES
    | _FILLS
    | _SOURCES
    | {"printf", *_RUNS}
    | {"for", "case", "esac", "select", "function", "coproc"}
)


def must_not_wrap(word: Word) -> None:
    """Refuse a program's name that is known in part, as in `env$X git`: it may be one that runs what stands behind it. One
    that begins with a hole alone is no matter: that hole may be any command, and every deny is met."""
    if not any(word.pieces):
        return
    known = "".join("\0" if piece is None else piece for piece in word.pieces).rpartition("/")[2]
    pattern = "".join(".*" if char == "\0" else re.escape(char) for char in known)
    if any(re.fullmatch(pattern, name) for name in SPECIAL):
        raise Unreadable("a program that is known in part, and may run another")


def look_into(name: str, words: list[Word]) -> Iterator[Inner]:
    if name in _OPAQUE or any((word.text or "").startswith(_RUNS.get(name, "\0")) for word in words[1:]):
        raise Unreadable(f"`{name}`, which runs what cannot be seen")
    if name in _SHELLS:
        yield from _shell(words)
    elif name in _FINDERS:
        yield from _find(words)
    elif name in _SOURCES:
        _must_be_file(words[1] if len(words) > 1 else Word(["-"]))
    elif name in _TESTS:
        _test(words)
    elif name in _DECLARES:
        _declaration(words)
    elif name in _FILLS:
        yield from _filled_variables(words)
    elif name == "printf":
        yield from _printf(words)
    elif wrapper := _WRAPPERS.get(name):
        inner, options = _behind(wrapper, words)
        if name == "sudo" and not inner and set("is") & set(options):
            raise Unreadable("a shell that reads its commands from elsewhere")
        if name == "command" and set("vV") & set(options):
            return  # it only tells what would be run
        if name == "xargs" and inner:
            yield from _xargs(inner, options)
        elif inner:
            yield inner


# Builtins that take a word for a variable expand its subscript: `[ -v 'a[$(rm x)]' ]` runs the rm.


def _test(words: list[Word]) -> None:
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else Word()
        if word.splits or (None in word.pieces and None in after.pieces):
            raise Unreadable("a test with words that are not known yet")
        if word.text in ("-v", "-R") and not _NAME.fullmatch(after.text or ""):
            raise Unreadable("a test of a variable that may run commands")


def _declaration(words: list[Word]) -> None:
    for word in words[1:]:
        first = word.pieces[0] if word.pieces else ""
        name, assigns, _ = (first or "").partition("=")
        if not assigns and None in word.pieces:
            raise Unreadable("a declaration of what is not known yet")
        if name[:1] in "-+" and set("in") & set(name):
            raise Unreadable("a variable whose text is read again")
        if name[:1] not in "-+" and not _NAME.fullmatch(name.removesuffix("+")):
            raise Unreadable("a declaration that may run commands")


def _filled_variables(words: list[Word]) -> Iterator[Inner]:
    fills = words[0].text not in ("unset", "wait")
    unknown = sum(word.text is None for word in words)
    if words[0].text == "wait" and any((word.text or "").startswith(("-p", "-np")) for word in words):
        raise Unreadable("a `wait` that fills a variable")
    for word in words[1:]:
        if word.text is None:
            if word.splits or fills or unknown > 1:  # `wait "$a" "$b"` may be `wait -p name`
                raise Unreadable("a variable whose name is not known yet")
        elif _SUBSCRIPT.match(word.text):
            raise Unreadable("a variable with a subscript that may run commands")
        elif fills and _NAME.fullmatch(word.text) and not QUIET_NAME.fullmatch(word.text):
            yield [_assigned(word.text)]


def _printf(words: list[Word]) -> Iterator[Inner]:
    """Read a `printf`: `-v` makes an assignment of it."""
    if len(words) < 2:
        return
    first = words[1]
    if first.splits or first.pieces == ["", None]:
        raise Unreadable("a `printf` whose first word is not known yet")
    if (first.text or "").startswith("-v"):
        joined = (first.text or "")[2:] or (words[2].text if len(words) > 2 else None)
        if not _NAME.fullmatch(joined or ""):
            raise Unreadable("a variable whose name is not known yet")
        yield [_assigned(joined or "")]


def _assigned(name: str) -> Word:
    word = Word()
    word.add(f"{name}=", bare=True)
    word.add_hole()
    return word


def _xargs(inner: list[Word], options: dict[str, str | None]) -> Iterator[Inner]:
    if "I" in options:
        mark = options["I"] or "{}"
        yield [_filled(word, mark) for word in inner]
        return
    yield inner
    more = Word()
    more.add_hole()
    yield [*inner, more]


def _find(words: list[Word]) -> Iterator[Inner]:
    if any(word.pieces == [None] for word in words):
        raise Unreadable("a `find` with words that are not known yet")
    at = 1
    while at < len(words):
        if words[at].text in _FIND_RUNS:
            end = next((to for to in range(at, len(words)) if words[to].text in (";", "+")), None)
            if end is None or end == at + 1:
                raise Unreadable("a `find -exec` that does not end")
            yield [_filled(word, "{}") for word in words[at + 1 : end]]
            at = end
        at += 1


def _filled(word: Word, mark: str) -> Word:
    if mark not in (word.text or ""):
        return word
    filled = Word()
    filled.add_hole()
    return filled


def _shell(words: list[Word]) -> Iterator[Inner]:
    at, runs_text = 1, False
    while at < len(words) and (option := words[at].text) is not None and option[:1] in ("-", "+"):
        at += 1
        if option in ("-", "--"):
            break
        if option.startswith("--"):
            if option not in _SHELL_LONG:
                raise Unreadable("a shell with an option that is not known")
            continue
        if "s" in option:
            raise Unreadable("a shell that reads its commands from elsewhere")
        if set("oO") & set(option[1:-1]):
            raise Unreadable("a shell with an option that is not known")
        runs_text = runs_text or "c" in option
        at += option[-1] in "oO"
    if at >= len(words):
        raise Unreadable("a shell that reads its commands from elsewhere")
    script = words[at].text
    if runs_text or script is None:
        if script is None:
            raise Unreadable("a shell whose commands are not known yet")
        yield ShellScript(script)
    else:
        _must_be_file(words[at])


def _must_be_file(script: Word) -> None:
    if not any(script.pieces) or (script.pieces[0] or "").startswith(_OPEN_FILES):
        raise Unreadable("a shell whose commands are not known yet")


def _behind(wrapper: _Wrapper, words: list[Word]) -> tuple[list[Word], dict[str, str | None]]:
    """Find the wrapped command, and the options before it."""
    options: dict[str, str | None] = {}
    at, operands = 1, 0
    while at < len(words):
        text = words[at].text
        if text is None or text == "-":
            raise Unreadable("a command behind a word that is not known yet")
        if text == "--":
            at += 1
            break
        if text.startswith("-") and len(text) > 1 and not operands:
            at += _option(wrapper, words, at, options)
        elif wrapper.assigns and ASSIGNMENT.match(text):
            at += 1
        elif operands < wrapper.operands:
            operands += 1
            at += 1
        else:
            break
    while operands < wrapper.operands and at < len(words):
        operands, at = operands + 1, at + 1
    return words[at:], options


def _option(wrapper: _Wrapper, words: list[Word], at: int, options: dict[str, str | None]) -> int:
    """Read an option; return how many words it takes."""
    text = words[at].text or ""
    if text.startswith("--"):
        if "=" in text and not text.startswith("--split"):
            return 1
        if text[2:] in wrapper.long_flags:
            return 1
        raise Unreadable("a wrapper with an option that is not known")
    for place, letter in enumerate(text[1:], start=1):
        if letter in wrapper.valued:
            inside = text[place + 1 :]
            after = words[at + 1].text if at + 1 < len(words) else None
            options[letter] = inside or after
            if not inside and after is None:
                raise Unreadable("a wrapper's option whose value is not known")
            return 1 if inside else 2
        if letter not in wrapper.flags:
            raise Unreadable("a wrapper with an option that is not known")
        options[letter] = None
    return 1
