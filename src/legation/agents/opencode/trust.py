"""Code that a folder brings for OpenCode to run, and that no setting of OpenCode's keeps it from running.

OpenCode loads plugins by two ways. The older one heeds OPENCODE_DISABLE_PROJECT_CONFIG; the newer, seen in 1.18, heeds
nothing. A folder that is not trusted and brings plugins is therefore refused (INV-O2), and so is a home that does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from legation.errors import Forbidden

_OWN: Final = ".opencode"
_FOLDERS: Final = ("plugin", "plugins")
_CODE: Final = (".js", ".ts")
_SETTINGS: Final = ("opencode.json", "opencode.jsonc")
_NAMED: Final = re.compile(r'"plugins?"\s*:')
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
SETTINGS_LIMIT: Final = (
    1024 * 1024
)  # bytes of a settings file; a longer one is not looked through, and not let in


def must_bring_no_code(folder: str) -> None:
    """For a folder that is not trusted. It and those above it count, up to the owner's home."""
    for found in _code(Path(folder)):
        raise Forbidden(
            f"cannot work in {folder}: it brings plugins ({found}), which OpenCode runs whatever it is told; remove them,"
            " or trust the folder with `legation trust`"
        )


def home_must_bring_no_code(env: Mapping[str, str]) -> None:
    """`env` is what OpenCode is started with. Its home is the agent's: a file that was once allowed there, as a mere
    change of a file, must not be run unasked ever after."""
    home = Path(env["HOME"])
    settings = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    for found in (file for where in (settings, home / _OWN) for file in _brought(where)):
        raise Forbidden(
            f"cannot start OpenCode: {found} in its own home would be run unasked; look at it and remove it"
        )


def _code(folder: Path) -> Iterator[Path]:
    home = Path.home().resolve()
    for place in (folder.resolve(), *folder.resolve().parents):
        if place == home:
            return
        yield from _brought(place / _OWN)
        yield from (file for file in _files(place) if _names_plugins(file))


def _brought(own: Path) -> Iterator[Path]:
    """By a folder that is OpenCode's."""
    for each in (own / name for name in _FOLDERS):
        if each.is_dir():
            yield from (file for file in each.iterdir() if file.suffix in _CODE)
    yield from (file for file in _files(own) if _names_plugins(file))


def _files(where: Path) -> Iterator[Path]:
    return (where / name for name in _SETTINGS if (where / name).exists())


def _names_plugins(file: Path) -> bool:
    """As text, for it may hold comments; what cannot be read counts as if it did."""
    try:
        if file.stat().st_size > SETTINGS_LIMIT:
            return True
        text = file.read_text(errors="replace")
    except OSError:
        return True
    return bool(_NAMED.search(_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)))
