"""Programs that run another: what they would run is looked at too.

Options are known by name. One that is not known could take the next word with it, so that the program behind
it could not be told: the line is unreadable then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from legation.approvals.policy.shell.words import ASSIGNMENT, QUIET_NAME, Unreadable, Word


@dataclass(frozen=True, slots=True)
class Script:
    """Text for a shell."""

    text: str


Inner: TypeAlias = list[Word] | Script


@dataclass(frozen=True, slots=True)
class _Wrapper:
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
    """A program's name that is known in part, as in `env$X git`: it may be one that runs what stands behind it. One that
    begins with a hole alone is no matter: that hole may be any command, and every deny is met."""
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
    """`-v` makes an assignment of it."""
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
        yield Script(script)
    else:
        _must_be_file(words[at])


def _must_be_file(script: Word) -> None:
    if not any(script.pieces) or (script.pieces[0] or "").startswith(_OPEN_FILES):
        raise Unreadable("a shell whose commands are not known yet")


def _behind(wrapper: _Wrapper, words: list[Word]) -> tuple[list[Word], dict[str, str | None]]:
    """The wrapped command, and the options before it."""
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
    """How many words it takes."""
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
