"""`legation backup` and `legation restore`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, Self, TextIO

from cyclopts import Parameter

from legation.cli.command import LocalFlags, PlaceFlags, connect, line, say, settings_of, when
from legation.errors import Conflict, InvalidParams, NotFound
from legation.settings import Settings

if TYPE_CHECKING:
    from legation.settings import Settings
    from legation.store.secrets.passphrase import Seal

Passphrase = Annotated[
    Path | None,
    Parameter(help="A file with one line, that only you can read: the passphrase that seals the backup."),
]


def backup(
    file: Annotated[Path, Parameter(help="Where to; it must not exist yet.")],
    /,
    *,
    with_keys: Annotated[
        bool,
        Parameter(negative="", help="Put the keys in, too: whoever can read the file can open all of it."),
    ] = False,
    passphrase_file: Passphrase = None,
    settings: PlaceFlags | None = None,
) -> None:
    """Copy everything that the running Legation has into one file, while it goes on: its data folder, and the agents,
    policies and tools files that it goes by, wherever they are.

    Whoever gets the file can read in it what was said to agents and what they answered, of all workspaces, who did what,
    the files of runs, and what stands in agents.toml, keys in its `env` included. The vault's secrets and the sealed
    contents of traces open only with the keys, which are not in it unless you say --with-keys: keep `keys.json` of the data folder, or the LEGATION_VAULT_KEY,
    LEGATION_TOKEN_PEPPER and LEGATION_COOKIE_KEY that you set, in another place. The settings file may hold keys and
    passwords: it goes with them.

    With --passphrase-file nothing can be read without the passphrase. If that is lost, so is the backup:

        (umask 077; legation keys new > ~/backup.passphrase)
        legation backup --passphrase-file ~/backup.passphrase monday.legation

    It takes the scope `backup`, which the machine's owner and admins who signed in have, and tokens only if they were
    made with it.
    """
    if file.exists():
        raise Conflict(f"cannot back up to {file}: it exists; choose another name")
    seal = _seal(passphrase_file)
    with connect(settings) as server, ProgressLine(file.name, sys.stderr) as counted:
        server.backup(file, keys=with_keys, through=lambda: _Through(counted, seal()))
    say(f"{file}: {file.stat().st_size} bytes")
    if passphrase_file is not None:
        say("it is sealed: without the passphrase nobody can read it, nor can you", "dim")
    else:
        say(
            "not sealed: prompts, agents' answers, names and keys in agents.toml can be read in it; seal it with"
            " --passphrase-file",
            "yellow",
        )
    if not with_keys:
        say("the keys are not in it; keep keys.json of the data folder in another place", "dim")


def restore(
    file: Annotated[Path, Parameter(help="What `legation backup` made.")],
    /,
    *,
    replace: Annotated[
        bool,
        Parameter(negative="", help="Move what is there into the new data folder, instead of refusing."),
    ] = False,
    passphrase_file: Passphrase = None,
    new_keys: Annotated[
        bool,
        Parameter(
            negative="",
            help="Make new keys: what is sealed opens with them alone, and everybody signs in again. Tokens stay.",
        ),
    ] = False,
    settings: LocalFlags | None = None,
) -> None:
    """Make the data folder from a backup. Legation must be down.

    Files that were in the data folder are back in it, agents.toml too. Policies, tools and settings that were elsewhere
    are put into `config/` of the data folder, and where each belongs is said: nothing outside is written.

    Keys that are in the data folder stay, unless the backup has its own; one that they cannot open is refused. Give
    --new-keys if somebody else may have the backup or the old data: with the keys of then they could sign in as you.
    With --replace the old data stay in `replaced/` of the data folder until you delete them; `legation doctor` names them.
    """
    from legation.store.backup import restore as restore_folder
    from legation.store.backup import undo_cut_off
    from legation.store.secrets.passphrase import read_passphrase

    if not file.is_file():
        raise NotFound(f"cannot restore {file}: there is no such file")
    place = settings_of(settings)
    if new_keys and any((place.vault_key, place.cookie_key)):
        raise InvalidParams(
            "cannot make new keys: they are given as settings; restore without --new-keys, and change them there"
        )
    folder, now_ms = place.data_dir, time.time_ns() // 1_000_000
    undo_cut_off(folder)  # its keys count
    with ProgressLine(file.name, sys.stderr, total=file.stat().st_size) as counted:
        done = restore_folder(
            file,
            folder,
            replace=replace,
            now_ms=now_ms,
            known_keys=_known_keys(place),
            passphrase=read_passphrase(passphrase_file) if passphrase_file else None,
            new_keys=new_keys,
            progress=counted,
        )
    say(f"restored {done.files} file(s) of {when(done.made_at)} to {folder}")
    if done.moved_aside is not None:
        say(f"what was there, with its keys, is in {done.moved_aside}; delete it when you no longer need it")
    for each in done.elsewhere:
        if not each.is_the_same:
            there = "is another now" if each.was.exists() else "is not there"
            say(
                line(
                    f"{each.was} {there}; what the backup has of it is {each.now}: put it in its place, or set it"
                ),
                "yellow",
            )
    if not done.with_keys:
        say("it has no keys: put keys.json there, or set the LEGATION_ keys, before `legation up`", "yellow")
    elif new_keys:
        say("it has new keys: keep a copy of keys.json, and sign in again with `legation up`")
    else:
        say(
            "the keys of before are still in use; if somebody else may have them, restore again with --new-keys",
            "yellow",
        )


def _seal(passphrase_file: Path | None) -> Callable[[], Seal | None]:
    """Read at once: a mistake is told before anything is copied."""
    if passphrase_file is None:
        return lambda: None
    from legation.store.secrets.passphrase import Seal, read_passphrase

    passphrase = read_passphrase(passphrase_file)
    return lambda: Seal(passphrase)


class _Through:
    """A filter of what comes from the server, counted and perhaps sealed, on its way into the file."""

    def __init__(self, counted: ProgressLine, seal: Seal | None) -> None:
        self._counted, self._seal, self._count = counted, seal, 0

    def update(self, data: bytes) -> bytes:
        self._count += len(data)
        self._counted(self._count)
        return data if self._seal is None else self._seal.update(data)

    def finish(self) -> bytes:
        return b"" if self._seal is None else self._seal.finish()


def _known_keys(settings: Settings) -> set[str] | None:
    """The ids of the vault keys that the restored data will be opened with; None if there are none yet."""
    from legation.server.installation import load_installation_keys
    from legation.store.datafolder import KEYS

    if settings.vault_key is None and not (settings.data_dir / KEYS).exists():
        return None
    ring = load_installation_keys(settings).vault
    return {key.id for key in (ring.current, *ring.older)}


PERIOD: Final = 0.1  # seconds between two looks: the reader's eye
_MEGABYTE: Final = 1_000_000


class ProgressLine:
    """A line that says how far long work is, one that is written over, where somebody looks at it, and nothing elsewhere.

    `total` is that of every call which gives none, where it is known; `then` is what comes when all of it is there."""

    def __init__(self, name: str, out: TextIO, *, total: int | None = None, then: str | None = None) -> None:
        self._name, self._out, self._mutex = line(name), out, Lock()
        self._total, self._then = total, then
        self._shown = 0.0
        self._width = 0

    def __call__(self, done: int, total: int | None = None) -> None:
        total = self._total if total is None else total
        now, is_all = time.monotonic(), total is not None and done >= total
        with self._mutex:
            if not self._out.isatty() or (now - self._shown < PERIOD and not is_all):
                return
            self._shown = now
            of = "" if total is None else f" of {total // _MEGABYTE}"
            text = f"{self._name}: {done // _MEGABYTE}{of} MB"
            if is_all and self._then is not None:
                text += f", {self._then}"
            self._out.write(f"\r{text.ljust(self._width)}")
            self._out.flush()
            self._width = max(self._width, len(text))

    def count(self, text: str) -> None:
        """Show any other measure of how far it is."""
        with self._mutex:
            if not self._out.isatty() or time.monotonic() - self._shown < PERIOD:
                return
            self._shown = time.monotonic()
            self._out.write(f"\r{f'{self._name}: {text}'.ljust(self._width)}")
            self._out.flush()
            self._width = max(self._width, len(self._name) + 2 + len(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
