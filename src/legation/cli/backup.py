"""`legation backup` and `legation restore`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from legation.cli.connection import connect
from legation.cli.flags import LocalFlags, PlaceFlags, settings_of
from legation.cli.table import when
from legation.cli.terminal import Terminal
from legation.errors import Conflict, NotFound

if TYPE_CHECKING:
    from legation.settings import Settings


def backup(
    file: Path,
    /,
    *,
    with_keys: Annotated[
        bool,
        Parameter(negative="", help="Put the keys in, too: whoever has the file can then open all of it."),
    ] = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Copy everything that the running Legation has into one file, while it goes on.

    Without the keys the copy is safe to store anywhere and of no use alone: keep `keys.json` of the data folder, or
    the LEGATION_VAULT_KEY, LEGATION_TOKEN_PEPPER and LEGATION_COOKIE_KEY that you set, in another place.

    Parameters
    ----------
    file
        Where to; it must not exist yet.
    """
    if file.exists():
        raise Conflict(f"cannot back up to {file}: it exists; choose another name")
    with connect(settings) as server:
        server.backup(file, keys=with_keys)
    out = Terminal()
    out.say(f"{file}: {file.stat().st_size} bytes")
    if not with_keys:
        out.say("the keys are not in it; keep keys.json of the data folder in another place", "dim")
    return 0


def restore(
    file: Path,
    /,
    *,
    replace: Annotated[
        bool, Parameter(negative="", help="Move what is in the data folder aside, instead of refusing.")
    ] = False,
    settings: LocalFlags | None = None,
) -> int:
    """Make the data folder from a backup. Legation must be down.

    Keys that are in the data folder stay, unless the backup has its own; one that they cannot open is refused.

    Parameters
    ----------
    file
        What `legation backup` made.
    """
    from legation.store.restore import restore as restore_folder

    if not file.is_file():
        raise NotFound(f"cannot restore {file}: there is no such file")
    place = settings_of(settings)
    folder, now_ms = place.data_dir, time.time_ns() // 1_000_000
    done = restore_folder(file, folder, replace=replace, now_ms=now_ms, known_keys=_known_keys(place))
    out = Terminal()
    out.say(f"restored {done.files} file(s) of {when(done.made_at)} to {folder}")
    if done.moved_aside is not None:
        out.say(f"what was there is in {done.moved_aside}")
    if not done.with_keys:
        out.say(
            "it has no keys: put keys.json there, or set the LEGATION_ keys, before `legation up`", "yellow"
        )
    return 0


def _known_keys(settings: Settings) -> set[str] | None:
    """The ids of the vault keys that the restored data will be opened with; None if there are none yet."""
    from legation.server.instance import load_installation_keys
    from legation.store.datafolder import KEYS

    if settings.vault_key is None and not (settings.data_dir / KEYS).exists():
        return None
    ring = load_installation_keys(settings).vault
    return {key.id for key in (ring.current, *ring.older)}
