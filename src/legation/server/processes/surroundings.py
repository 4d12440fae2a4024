"""What a process of an operator starts with: a folder, an environment of its own, arguments that a kernel can take.

INV-P5  The environment is built up from an allow-list and from what was asked for; nothing else of the server's, and
        above all none of its settings and keys, is in it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from legation.errors import InvalidParams, StorageFailed
from legation.proc import child_environment
from legation.store.datafolder import make_folder

FolderOf: TypeAlias = Callable[[str], Awaitable[Path]]
"""Of a path that somebody sent: its real path, if it is a folder that this server serves."""

TERMINAL_KIND: Final = "xterm-256color"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS: Final = "LEGATION_"


def check_words(words: Iterable[str]) -> None:
    for word in words:
        if "\0" in word:
            raise InvalidParams("cannot start the process: a word of its command holds NUL; leave it out")
        _check_text(word)


def environment(asked: Mapping[str, str], home: Path, tmp: Path, *, tty: bool) -> dict[str, str]:
    for name, value in asked.items():
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise InvalidParams(
                "cannot start the process: the name of a variable must be letters, digits and underscores, and must "
                f"not begin with {_OURS}; choose another"
            )
        if "\0" in value:
            raise InvalidParams("cannot start the process: the value of a variable holds NUL; leave it out")
        _check_text(value)
    kind = {"TERM": TERMINAL_KIND} if tty else {}
    return {**child_environment(kind, home=home, tmp=tmp), **asked}


def make_home(homes: Path, workspace: str) -> tuple[Path, Path]:
    """HOME and TMPDIR of a workspace's processes; kept. Blocks."""
    place = homes / quote(workspace, safe="")
    home, tmp = place / "home", place / "tmp"
    try:
        for folder in (home, tmp):
            make_folder(folder)
    except OSError as error:
        raise StorageFailed(
            f"cannot make the processes' home in {homes}: {error.strerror}; make room, or make it writable"
        ) from error
    return home, tmp


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParams("cannot start the process: a text in it is not UTF-8; correct it") from None
