"""Whether what is installed is what the lock names: every file, by size, content and mode, and no other.

The record that lies with the files tells which of them is wrong; it is believed only where the lock's own hash over
a package's files agrees with it, so that a file changed together with the record is found too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from legation.agents.install.folder import RECORD, Installed, InstallFolder
from legation.agents.install.lock import Package, Release
from legation.agents.install.target import Target, here
from legation.agents.install.tree import FileMark, content, digest

MOST_SHOWN: Final = 50  # problems of one agent; more say nothing more


class Verified(msgspec.Struct, frozen=True):
    agent: str
    version: str
    files: int
    bytes: int
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.problems


def verify(
    folder: InstallFolder, installed: Installed, release: Release | None, target: Target | None = None
) -> Verified:
    """Reads every file. Without a `release` the lock does not know this version any more, and that is a problem."""
    place = folder.version(installed.version)
    problems = list(_against_lock(installed, release, target or here()))
    listed = {f"{package.at}/{mark.path}": mark for package in installed.packages for mark in package.files}
    problems += _against_record(place, listed)
    size = sum(mark.size for mark in listed.values())
    return Verified(installed.agent, installed.version, len(listed), size, tuple(problems[:MOST_SHOWN]))


def _against_lock(installed: Installed, release: Release | None, target: Target) -> Iterator[str]:
    if release is None:
        yield f"{installed.version} is not in the lock of this Legation"
        return
    recorded = {package.at: package for package in installed.packages}
    wanted = {package.at: package for package in release.packages_for(target)}
    for at in sorted(recorded.keys() - wanted.keys()):
        yield f"{at} is not in the lock"
    for at, package in sorted(wanted.items()):
        yield from _package(package, recorded[at].files if at in recorded else None)


def _package(package: Package, files: tuple[FileMark, ...] | None) -> Iterator[str]:
    if files is None:
        yield f"{package.at} is missing"
    elif digest(files) != package.tree:
        yield f"{package.at} is not {package} as the lock names it"


def _against_record(place: Path, listed: dict[str, FileMark]) -> Iterator[str]:
    present = set(_present(place))
    for path in sorted(present - listed.keys() - {RECORD}):
        yield f"{path} does not belong there"
    for path in sorted(listed.keys() - present):
        yield f"{path} is missing"
    for path in sorted(listed.keys() & present):
        if problem := _difference(place / path, listed[path]):
            yield f"{path} {problem}"


def _present(place: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(place):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in (*names, *links):
            yield Path(parent, name).relative_to(place).as_posix()


def _difference(path: Path, mark: FileMark) -> str | None:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a file"
        if found.st_size != mark.size or content(path) != mark.sha256:
            return "has other content"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if bool(found.st_mode & 0o111) == mark.program else "has another mode"
