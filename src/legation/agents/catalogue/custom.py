"""The owner's own agents: one stanza each in a file of the owner's.

    [agents.mine]
    command = "my-agent --acp"
    args = ["--fast"]            # more arguments, taken as they are
    env = ["MY_API_KEY"]         # variables of Legation's environment that it is given
    title = "My agent"
    asking_modes = ["careful"]   # of its modes, those in which it asks, the best first
    unasking_modes = ["turbo"]   # and those in which it does not: no session stays in one
    fs = false                   # it is not offered to have files read and written for it

The file is read as a whole: either every stanza is good, or one error lists all that is wrong.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from legation.agents.beginning import AskingModes
from legation.agents.catalogue.entry import Direct, Entry, Way
from legation.errors import ConfigInvalid

FILE: Final = "agents.toml"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_KEYS: Final = ("command", "args", "env", "title", "asking_modes", "unasking_modes", "fs")


def read(path: Path, taken: Collection[str]) -> tuple[Entry, ...]:
    """None where there is no file. `taken` are names that are Legation's own."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigInvalid(f"cannot read {path}: {error.strerror}; correct or remove it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"cannot read {path}: it is not TOML ({error}); correct it") from None
    stanzas = found.pop("agents", {})
    problems = [f"{key}: unknown; write [agents.NAME]" for key in found]
    if not isinstance(stanzas, dict):
        stanzas, problems = {}, [*problems, "agents: write [agents.NAME]"]
    entries = []
    for name, stanza in stanzas.items():
        wrong = list(_problems(name, stanza, taken))
        problems += wrong
        if not wrong:
            entries.append(_entry(name, stanza))
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use {path}; correct this:{lines}", {"problems": problems})
    return tuple(entries)


def _problems(name: str, stanza: Any, taken: Collection[str]) -> Iterator[str]:
    place = f"agents.{name}"
    if not _NAME.fullmatch(name):
        yield f"{place}: a name is small letters, digits, - and _"
    if name in taken:
        yield f"{place}: this name is taken; choose another one"
    if not isinstance(stanza, dict):
        yield f'{place}: write [{place}] and below it command = "..."'
        return
    for key in stanza.keys() - set(_KEYS):
        yield f"{place}.{key}: unknown; known are {', '.join(_KEYS)}"
    if not _words(stanza.get("command")):
        yield f'{place}.command: write the program, like command = "my-agent --acp"; check its quotes'
    if not _texts(stanza.get("args", [])):
        yield f'{place}.args: write a list of texts, like args = ["--fast"]'
    names = stanza.get("env", [])
    if not _texts(names) or not all(_VARIABLE.fullmatch(each) for each in names):
        yield f'{place}.env: write names of variables, never values, like env = ["MY_API_KEY"]'
    for key in ("asking_modes", "unasking_modes"):
        if not _texts(stanza.get(key, [])):
            yield f'{place}.{key}: write a list of names of modes, like {key} = ["default"]'
    if not isinstance(stanza.get("fs", True), bool):
        yield f"{place}.fs: write true or false"
    if not isinstance(stanza.get("title", ""), str):
        yield f"{place}.title: write a text"


def _entry(name: str, stanza: dict[str, Any]) -> Entry:
    argv = (*_words(stanza["command"]), *stanza.get("args", ()))
    names = tuple(stanza.get("env", ()))
    return Entry(
        name=name,
        title=stanza.get("title") or name,
        way=Way("acp", Direct(argv)),
        credentials=names,
        passes=names,
        modes=AskingModes(tuple(stanza.get("asking_modes", ())), tuple(stanza.get("unasking_modes", ()))),
        fs=stanza.get("fs", True),
        needs_sign_in=False,
        origin="custom",
    )


def _words(command: object) -> tuple[str, ...]:
    if not isinstance(command, str) or "\0" in command:
        return ()
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        return ()
    return tuple(str(Path(word).expanduser()) if word.startswith("~/") else word for word in words)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)
