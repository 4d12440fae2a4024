"""Skills of a session: folders with a `SKILL.md`, copied to where agents look for them in the session's folder. They come
from a folder of this machine, or from a git repository, fetched once and bounded.

INV-K1  Nothing outside the named source is copied: links are left out, and whatever is no regular file.
INV-K2  What stands in the session's folder already is left as it is.
INV-K3  Nothing is copied that Legation opens for nobody (store/forbidden.py): what was opened is looked at, whatever
        took the place of a skill's file meanwhile. A folder above the data folder is no skill.

Every function that is not async blocks for as long as the disk does: call it off the loop.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from legation.errors import InvalidParams, StorageFailed, TooLarge, Unavailable
from legation.store.datafolder import new_mode
from legation.store.files import CREATE, READ
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.action import MAX_PATH
from legation.wire.api.sessions import Skills, SkillSource

MARK: Final = "SKILL.md"
# Where Claude, OpenCode and the others look.
PLACES: Final = (".agents/skills", ".claude/skills", ".opencode/skill")
MOST_FILES: Final = 2_000  # of all skills of a session
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_SOURCES: Final = 32  # of one session
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
FETCH_LIMIT: Final = 120.0  # seconds that a repository may take to arrive: the network's time
_GITHUB: Final = re.compile(r"[A-Za-z0-9-]{1,64}/[A-Za-z0-9_.-]{1,128}", re.ASCII)
_URL: Final = re.compile(r"https://[A-Za-z0-9.-]+(:\d{1,5})?/[A-Za-z0-9_./~%+-]+", re.ASCII)
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}", re.ASCII)

Folder: TypeAlias = Callable[[str], Awaitable[Path]]
"""The real path of a folder that somebody named, if it is served: if sessions may work there."""


async def put_in_place(
    given: Skills | None,
    work: Path,
    folder: Folder,
    forbidden: ForbiddenPlaces,
    places: Sequence[str] = PLACES,
) -> tuple[str, ...]:
    """The names of the skills that the session has then."""
    if given is None or not given.sources:
        return ()
    if len(given.sources) > MOST_SOURCES:
        raise InvalidParams(f"cannot take skills from more than {MOST_SOURCES} sources; leave some out")
    names: list[str] = []
    for source in given.sources:
        async with _opened(source, folder) as root:
            found = await asyncio.to_thread(find, root, source.subpath, source.skills)
            for skill in found if source.type == "local" else ():
                await folder(str(skill))  # a subpath may lead to what is not served
            await asyncio.to_thread(place, found, work, forbidden, places)
        names += [skill.name for skill in found]
    return tuple(dict.fromkeys(names))


@asynccontextmanager
async def _opened(source: SkillSource, folder: Folder) -> AsyncIterator[Path]:
    match source.type:
        case "local":
            yield await folder(source.source)
        case "git" | "github":
            url = _url(source)
            with tempfile.TemporaryDirectory(prefix="legation-skills-", ignore_cleanup_errors=True) as place:
                yield await asyncio.to_thread(_clone, url, source.ref, Path(place))
        case _:
            raise InvalidParams("cannot take skills from there: the type is local, git or github")


def _url(source: SkillSource) -> str:
    if source.ref is not None and not _REF.fullmatch(source.ref):
        raise InvalidParams("cannot use that `ref` of a skill's source; give a branch or a tag")
    if source.type == "github" and _GITHUB.fullmatch(source.source):
        return f"https://github.com/{source.source}"
    if _URL.fullmatch(source.source):
        return source.source
    raise InvalidParams("cannot take skills from there: give an https address, or owner/name of GitHub")


def _clone(url: str, ref: str | None, place: Path) -> Path:
    """The newest commit alone, without a question and without a hook."""
    git = shutil.which("git")
    if git is None:
        raise InvalidParams("cannot take skills from a repository: there is no git here; use a local source")
    target = place / (url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "skills")
    shallow = ("--quiet", "--depth=1", "--no-tags", "--single-branch", *(("--branch", ref) if ref else ()))
    process = subprocess.Popen(
        [git, "clone", *shallow, "--", url, str(target)],
        cwd=place,
        env=_environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(FETCH_LIMIT)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code != 0:
        why = f"it took more than {FETCH_LIMIT:g} s" if code is None else f"git ended with {code}"
        advice = "check its address, or use a local source"
        raise Unavailable(f"cannot fetch the repository of skills: {why}; {advice}")
    return target


def _environment(home: Path) -> dict[str, str]:
    """No credentials of ours, no configuration of the user's, https alone."""
    proxies = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
    return {
        **{name: os.environ[name] for name in proxies if name in os.environ},
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https",
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def find(source: Path, subpath: str | None, names: Sequence[str] | None) -> list[Path]:
    """The source itself, or the folders right in it, or in its folder `skills`."""
    found = {_checked(folder.name): folder for folder in _folders_in(_beneath(source, subpath))}
    wanted = list(found) if names is None else list(names)
    missing = [name for name in wanted if name not in found]
    if missing or not found:
        there = ", ".join(sorted(found)) or "none"
        raise InvalidParams(f"cannot find the skills in their source: there are {there}; correct `skills`")
    return [found[name] for name in wanted]


def _beneath(source: Path, subpath: str | None) -> Path:
    if subpath is None:
        return source
    if len(subpath) > MAX_PATH:
        raise InvalidParams("cannot use a skill's subpath that is too long to be opened; correct it")
    root = Path(os.path.realpath(source / subpath))
    if "\0" in subpath or not root.is_relative_to(os.path.realpath(source)):
        raise InvalidParams("cannot use a skill's subpath that leads out of its source; correct it")
    return root


def _folders_in(root: Path) -> Iterator[Path]:
    if _is_skill(root):
        yield root
        return
    for place in (root, root / "skills"):
        children: list[Path] = []
        if place == root or not place.is_symlink():
            with suppress(OSError):
                children = sorted(place.iterdir())
        yield from (child for child in children if not child.is_symlink() and _is_skill(child))


def _is_skill(folder: Path) -> bool:
    try:
        return stat.S_ISREG((folder / MARK).lstat().st_mode)
    except OSError:
        return False


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or not name.strip("."):
        raise InvalidParams("cannot use a skill of such a name: use letters, digits, `_`, `.` and `-`")
    return name


def place(
    skills: Sequence[Path], work: Path, forbidden: ForbiddenPlaces, places: Sequence[str] = PLACES
) -> None:
    """Into the session's folder. What is too much, or must not be read, is found before anything is copied."""
    try:
        _must_fit(skills, work, forbidden)
        for where in places:
            for skill in skills:
                _copy(skill, _made(work, where) / skill.name, forbidden)
    except OSError as error:
        raise StorageFailed(f"cannot put the skills in place: {error.strerror}; mend that") from error


def put_texts(skills: Mapping[str, str], work: Path, places: Sequence[str] = PLACES) -> None:
    """Put skills of one text each in place: what stands in their `SKILL.md`, by their names. Readable by us alone."""
    try:
        for where in places:
            for name, text in skills.items():
                target = _made(work, where) / _checked(name)
                if not os.path.lexists(target):
                    target.mkdir(mode=0o700)
                    made = os.open(target / MARK, CREATE, 0o600)
                    with os.fdopen(made, "w", encoding="utf-8") as file:
                        file.write(text)
    except OSError as error:
        raise StorageFailed(f"cannot put the skills in place: {error.strerror}; mend that") from error


def _made(work: Path, where: str) -> Path:
    """A link in the way is not followed: it may lead out of the folder."""
    folder = work
    for part in where.split("/"):
        folder = folder / part
        if folder.is_symlink():
            raise InvalidParams(
                f"cannot put skills into {where}: a link stands there; make it a folder, or leave the skills out"
            )
        folder.mkdir(mode=new_mode(folder.parent), exist_ok=True)
    return folder


def _copy(source: Path, target: Path, forbidden: ForbiddenPlaces) -> None:
    if os.path.lexists(target):
        return
    target.mkdir(mode=new_mode(target.parent))
    for folder, files in _tree(source):
        into = target / folder.relative_to(source)
        into.mkdir(mode=new_mode(target), exist_ok=True)
        for name in files:
            if stat.S_ISREG((folder / name).lstat().st_mode):
                _copy_file(folder / name, into / name, forbidden)


def _copy_file(source: Path, target: Path, forbidden: ForbiddenPlaces) -> None:
    with os.fdopen(os.open(source, READ), "rb") as file:
        status = forbidden.check_open(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return  # another thing took its place
        made = os.open(target, CREATE, stat.S_IMODE(status.st_mode) & 0o777)
        with os.fdopen(made, "wb") as copy:
            shutil.copyfileobj(file, copy)


def _must_fit(skills: Sequence[Path], work: Path, forbidden: ForbiddenPlaces) -> None:
    files, size, looked = 0, 0, forbidden.look()
    for skill in skills:
        for folder, found in _tree(skill):
            looked.check(folder.stat())
            if folder.samefile(work):
                raise InvalidParams(
                    "cannot use a skill that holds the session's own folder: it would hold itself; move one of them"
                )
            for name in found:
                status = (folder / name).lstat()
                looked.check(status)
                files, size = files + 1, size + status.st_size
            if files > MOST_FILES or size > MOST_BYTES:
                raise TooLarge(
                    f"cannot use skills of more than {MOST_FILES} files or {MOST_BYTES} bytes; name fewer of them"
                )


def _tree(source: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each folder of it and the names of the files in it, from the top down; no link leads anywhere."""
    for name, folders, files in os.walk(source):
        folder = Path(name)
        folders[:] = [each for each in folders if not (folder / each).is_symlink() and each != ".git"]
        yield folder, files
