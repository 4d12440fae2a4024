"""The places that Legation never opens for anybody, wherever a session works and whatever folders are served: its data
folders and what a restore left beside them, its keys and tokens, and the policy, tools, agents and settings files in force.
And those that it opens only where they are listed: the dot-folders directly below the home folder, where other programs keep
their keys.

Everything that opens a file or a folder for an agent or a caller asks this list. `tests/test_places.py` knows those ways.

INV-F3  A place is known by what it is on the disk (device and inode), not only by its name: a bind mount, another
        spelling on a disk that ignores case, a symbolic link, or a hard link to a key is refused all the same.
INV-F5  It is looked up anew each time: a policy that an editor replaced is another inode, and as forbidden.
INV-F6  What decides is what was opened: its name may lead elsewhere by then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from legation.errors import Forbidden
from legation.settings import config_file, default_data_folder
from legation.store.datafolder import WORK, is_left_beside, left_beside

if TYPE_CHECKING:
    from legation.settings import Settings

Identity = tuple[int, int]
Parts = tuple[str, ...]

# They hold the environment and the memory of processes, and whatever else the kernel tells; none is a file.
KERNEL: Final = ("/proc", "/sys", "/dev")
MOST_LINKS: Final = 40  # that one path may lead through: as many as the kernel follows


class ForbiddenPlaces:
    """Blocks: call it off the loop."""

    def __init__(
        self,
        folders: Sequence[Path] = (),
        files: Sequence[Path] = (),
        *,
        but: Sequence[Path] = (),
        workspace: str | None = None,
        home: Path | None = None,
        listed: Sequence[Path] = (),
    ) -> None:
        """`folders` are data folders, `files` whatever else, of which some may be folders. `but` are folders in them that
        may be used all the same. Of a `workspace`, only its own sessions' folders may become such ones. Dot-folders of
        `home` are open as far as they are `listed`."""
        self._workspace = workspace
        self._home, self._listed = home, tuple(listed)
        self._homes = () if home is None else tuple({_absolute(home).parts, _real(home).parts})
        self._open_dots = tuple(
            parts for each in listed for parts in {_absolute(each).parts, _real(each).parts}
        )
        self._folders = tuple(map(_absolute, folders))
        self._files = tuple(map(_absolute, files))
        self._but = tuple(each.parts for each in but)
        kernel = {found.st_dev for place in KERNEL if (found := _look(Path(place)))}
        self._kernel = kernel - {Path("/").stat().st_dev}  # where there is no such mount, it is the disk's

    @classmethod
    def in_force(
        cls, settings: Settings, environ: Mapping[str, str], listed: Sequence[Path] = ()
    ) -> ForbiddenPlaces:
        """The places of a server: no caller decides by a file that it has opened what agents may do or what the server is.
        `listed` are folders that its owner named, in words or by starting it there."""
        named = (
            config_file(environ),
            settings.policy,
            settings.tools,
            settings.agents,
            settings.tls_cert,
            settings.tls_key,
            *(
                each for each in map(Path, settings.notify_command) if not each.is_dir()
            ),  # a program, its script
        )
        folders = (settings.data_dir, default_data_folder(environ))
        return cls(
            [each for each in folders if each.is_absolute()],
            [each for each in named if each is not None and each.is_absolute()],
            home=Path(environ["HOME"]) if Path(environ.get("HOME", "")).is_absolute() else None,
            listed=listed,
        )

    def but(self, *folders: Path) -> ForbiddenPlaces:
        return self._with(folders, self._workspace, self._listed)

    def in_workspace(self, workspace: str) -> ForbiddenPlaces:
        return self._with((), workspace, self._listed)

    def _with(self, but: Sequence[Path], workspace: str | None, listed: Sequence[Path]) -> ForbiddenPlaces:
        return ForbiddenPlaces(
            self._folders, self._files, but=but, workspace=workspace, home=self._home, listed=listed
        )

    def of_session(self, folders: Iterable[Path]) -> ForbiddenPlaces:
        """For a session that works in these, links resolved: one that Legation made for it lies in the data folder. They
        were judged when it began: what is in them is as good as listed."""
        works, folders = [_real(each) / WORK for each in self._folders], tuple(folders)
        own = [folder for folder in folders for work in works if self._is_own(folder, work)]
        dotted = [folder for folder in folders if self._dot_folder(folder.parts) is not None]
        return self._with(own, self._workspace, (*self._listed, *dotted)) if own or dotted else self

    def _is_own(self, folder: Path, work: Path) -> bool:
        if not folder.is_relative_to(work):
            return False
        workspace, *session = folder.relative_to(work).parts or ("",)
        return bool(session) and self._workspace in (None, workspace)

    def check_name(self, parts: Parts) -> None:
        """Refuse an absolute path by its name, whether something is there or not."""
        if self._is_open(parts):
            return
        if self._is_named(parts):
            raise _refusal()
        dot = self._dot_folder(parts)
        # A dot-file of the home is a file like any other; below a dot-folder nothing is, there or not.
        if dot is not None and (len(parts) > len(dot) or Path(*dot).is_dir()):
            raise _unlisted(dot)

    def check_new_folder(self, parts: Parts) -> None:
        """Refuse a folder that is to be made, or moved there, if it would be a dot-folder of the home."""
        if not self._is_open(parts) and (dot := self._dot_folder(parts)) is not None:
            raise _unlisted(dot)

    def check_above(self, parts: Parts) -> None:
        """Refuse a name that is to go, or to be given to something, if what is in it would be one of ours by its name."""
        if any(_begins(own, parts) for own in (*self._names(), *self._links(), *self._homes)):
            raise _refusal()

    def check(self, status: os.stat_result) -> None:
        """Refuse what is there, by what it is: a file with several names may be one of ours under another."""
        self.look().check(status)

    def check_open(self, fd: int) -> os.stat_result:
        """Refuse what was opened, before anything is done with it; else return what it is."""
        status = os.fstat(fd)
        self.check(status)
        with suppress(OSError):  # a system without it has only what was found on the way
            self.check_name(Path(os.readlink(f"/proc/self/fd/{fd}")).parts)  # noqa: PTH115 - of no file
        return status

    def check_folder(self, folder: Path) -> None:
        """Refuse a folder to work in that is one of ours, or in one, by any name."""
        real = Path(os.path.realpath(folder))
        self.check_name(real.parts)
        looked = self.look()
        if (status := _look(real)) is not None:
            looked.check(status)
        if self._is_open(real.parts):
            return
        # Not by device: a folder of memory that is mounted in /dev is as good as any.
        above = (identity(found) for each in real.parents if (found := _look(each)))
        if not looked.identities.isdisjoint(above):
            raise _refusal()

    def check_session(self, folders: Iterable[Path]) -> None:
        """Refuse folders for a session to work in."""
        real = [Path(os.path.realpath(each)) for each in folders]
        forbidden = self.of_session(real)
        for folder in real:
            forbidden.check_folder(folder)

    def check_tree(self, status: os.stat_result) -> None:
        """Refuse to have a folder go, with everything in it, if one of ours is in there."""
        self.check(status)
        names = (*self._names(), *self._links(), *((*home, ".") for home in self._homes))
        above = {Path(*own[:count]) for own in names for count in range(1, len(own))}
        if identity(status) in {identity(found) for each in above if (found := _look(each))}:
            raise Forbidden(
                "cannot move or delete this folder: Legation's own data, or your home, is in it; choose another"
            )

    def look(self) -> Looked:
        """The list as it is now, for whoever goes through many files."""
        return Looked(self._roots(), self._data_roots(), self._kernel, self._but)

    def _is_open(self, parts: Parts) -> bool:
        return any(_begins(parts, own) for own in self._but)

    def _dot_folder(self, parts: Parts) -> Parts | None:
        """Find the dot-folder of the home that it is, or is in; None for one that is listed, and for all else."""
        for home in self._homes:
            if len(parts) > len(home) and _begins(parts, home) and parts[len(home)].startswith("."):
                dot = parts[: len(home) + 1]
                listed = any(_begins(each, dot) and _begins(parts, each) for each in self._open_dots)
                return None if listed else dot
        return None

    def _is_named(self, parts: Parts) -> bool:
        if any(_begins(parts, own) for own in self._names()):
            return True
        # Also of one that is not there any more, or not yet.
        return any(
            _begins(parts, each.parent.parts)
            and len(parts) >= len(each.parts)
            and is_left_beside(parts[len(each.parts) - 1], each)
            for each in self._data()
        )

    def _data(self) -> Iterator[Path]:
        for each in self._folders:
            yield from {each, Path(os.path.realpath(each))}

    def _data_roots(self) -> list[Path]:
        return [place for each in self._data() for place in (each, *left_beside(each))]

    def _roots(self) -> list[Path]:
        """The places that are there, or would be, each by its own name and by the one that its links lead to."""
        found = dict.fromkeys(self._data_roots())
        for each in self._files:
            linked = (Path(os.path.realpath(link)) for link in _links_in(each))
            found |= dict.fromkeys((each, Path(os.path.realpath(each)), *linked))
        return list(found)

    def _names(self) -> Iterator[Parts]:
        return (each.parts for each in self._roots())

    def _links(self) -> Iterator[Parts]:
        """The links on the way to ours: to replace one is to replace what it leads to."""
        for each in (*self._folders, *self._files):
            yield from _links_on_the_way(each)
        for each in self._files:
            for link in _links_in(each):
                yield from _links_on_the_way(link)


class Looked:
    """The list at one moment. `data` are those of them that are data folders, where what changes is no agent's doing."""

    def __init__(
        self, roots: Sequence[Path], data: Sequence[Path], kernel: set[int], but: Sequence[Parts]
    ) -> None:
        self.data: Final = tuple(data)
        self._roots = roots
        self._kernel = kernel
        self._but = but
        self.identities: Final = frozenset(identity(found) for each in roots if (found := _look(each)))

    def check(self, status: os.stat_result) -> None:
        if self.refuses(status):
            raise _refusal()

    def refuses(self, status: os.stat_result) -> bool:
        if status.st_dev in self._kernel or identity(status) in self.identities:
            return True
        linked = status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        return linked and identity(status) in self._linked

    @cached_property
    def _linked(self) -> frozenset[Identity]:
        """Files at any depth of our folders that have another name, which may be anywhere."""
        return frozenset(found for each in self._roots for found in self._linked_in(each))

    def _linked_in(self, place: Path) -> Iterator[Identity]:
        folders = [str(place)]
        while folders:
            folder = folders.pop()
            if Path(folder).parts in self._but:
                continue
            # A file in force is among `identities`; what may not be read, or has gone, cannot be looked into.
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif (status := entry.stat(follow_symlinks=False)).st_nlink > 1:
                        yield identity(status)


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - without following links


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _begins(parts: Parts, with_: Parts) -> bool:
    return parts[: len(with_)] == with_


def _links_in(folder: Path) -> Iterator[Path]:
    """By which a folder of policies takes files from elsewhere."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)


def _links_on_the_way(path: Path) -> Iterator[Parts]:
    """The links that a path leads through, each by where it stands."""
    done, rest, links = path.parts[:1], path.parts[1:], 0
    while rest and links <= MOST_LINKS:
        name, rest = rest[0], rest[1:]
        if name == "..":
            done = done[:-1] or done
            continue
        done = (*done, name)
        try:
            target = Path(os.readlink(Path(*done))).parts  # noqa: PTH115 - its text
        except OSError:
            continue  # no link, or nothing
        yield done
        links += 1
        done, rest = (
            (target[:1], (*target[1:], *rest)) if target[:1] == ("/",) else (done[:-1], (*target, *rest))
        )


def _look(place: Path) -> os.stat_result | None:
    with suppress(OSError):
        return place.stat()
    return None


def _refusal() -> Forbidden:
    return Forbidden("cannot use this path: it is Legation's own or the system's; choose another")


def _unlisted(dot: Parts) -> Forbidden:
    return Forbidden(
        f"cannot use this path: {Path(*dot)} is a folder of the home that begins with a dot, where keys are kept; list it "
        "with `--folder` when you start the server"
    )
