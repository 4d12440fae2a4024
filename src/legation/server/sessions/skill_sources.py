"""Where skills come from: a folder of this machine, or a git repository, fetched once and bounded."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Final, TypeAlias

from legation.errors import InvalidParams, Unavailable
from legation.server.sessions import skills
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.api.sessions import Skills, SkillSource

MOST: Final = 32  # sources of one session
FETCH_LIMIT: Final = 120.0  # seconds that a repository may take to arrive: the network's time
_GITHUB: Final = re.compile(r"[A-Za-z0-9-]{1,64}/[A-Za-z0-9_.-]{1,128}", re.ASCII)
_URL: Final = re.compile(r"https://[A-Za-z0-9.-]+(:\d{1,5})?/[A-Za-z0-9_./~%+-]+", re.ASCII)
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}", re.ASCII)

Folder: TypeAlias = Callable[[str], Awaitable[Path]]
"""A path that somebody named, if it is a folder that is served."""


async def put_in_place(
    given: Skills | None, work: Path, folder: Folder, forbidden: ForbiddenPlaces
) -> tuple[str, ...]:
    """The names of the skills that the session has then."""
    if given is None or not given.sources:
        return ()
    if len(given.sources) > MOST:
        raise InvalidParams(f"cannot take skills from more than {MOST} sources; leave some out")
    names: list[str] = []
    for source in given.sources:
        async with _opened(source, folder) as root:
            found = await asyncio.to_thread(skills.find, root, source.subpath, source.skills)
            for skill in found if source.type == "local" else ():
                await folder(str(skill.folder))  # a subpath may lead to what is not served
            await asyncio.to_thread(skills.place, found, work, forbidden)
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
    git = which("git")
    if git is None:
        raise InvalidParams("cannot take skills from a repository: there is no git here; use a local source")
    branch = ("--branch", ref) if ref else ()
    target = place / (url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "skills")
    argv = [
        git,
        "clone",
        "--quiet",
        "--depth=1",
        "--no-tags",
        "--single-branch",
        *branch,
        "--",
        url,
        str(target),
    ]
    process = subprocess.Popen(
        argv,
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
        raise Unavailable(
            f"cannot fetch the repository of skills: {why}; check its address, or use a local source"
        )
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
