"""What a repository can tell Amp to do, and how it is kept from it.

Amp runs the plugins and heeds the rules that it finds in `.amp` of the working folder, or of the root of its git
repository, and has no option against that. So where they are and the folder is not trusted, Amp is not started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from legation.agents.beginning import REPOSITORY
from legation.errors import Forbidden

_CONFIGURATION: Final = ("settings.json", "settings.jsonc", "plugins")


def refuse_untrusted(cwd: Path) -> None:
    found = next(iter(configuration_of(cwd)), None)
    if found is not None:
        raise Forbidden(
            f"cannot start Amp in {cwd}: {found} would decide what it runs and allows, and the folder is not trusted;"
            " look through it and run `legation trust`, or remove it"
        )


def configuration_of(cwd: Path) -> list[Path]:
    places = (folder / ".amp" / name for folder in _folders(cwd.resolve()) for name in _CONFIGURATION)
    return [place for place in places if place.exists() or place.is_symlink()]


def _folders(cwd: Path) -> tuple[Path, ...]:
    """From the working folder to the root of its repository, where it is in one. What only looks like a root is none where
    there is another above it."""
    above = (cwd, *cwd.parents)
    last = 0
    for number, folder in enumerate(above):
        git = folder / ".git"
        if git.is_file() or all((git / part).exists() for part in REPOSITORY):
            return above[: number + 1]
        last = number if git.exists() else last
    return above[: last + 1]
