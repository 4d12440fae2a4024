"""Where a publisher's package or program lies on this machine, and how a program is started only to have its schema.

Nothing is installed or started to find one. What is started has no key, proxies that lead nowhere, and loopback. Every wait is
bounded, and nothing of it stays.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from legation.agents.catalogue.probe import NO_WAY_OUT
from legation.agents.install.folder import InstallFolder
from legation.errors import AgentError, TimedOut
from legation.proc import Child, Command, ProcessLauncher, child_environment

_AGENTS: Final = ("claude", "codex", "opencode", "amp")


@dataclass(frozen=True, slots=True)
class Places:
    """Folders with a `node_modules`, and the PATH to look in after them."""

    folders: tuple[Path, ...]
    path: str = ""

    @classmethod
    def of(cls, data_dir: Path | None, extra: Iterable[Path], environ: Mapping[str, str]) -> Places:
        """Those named, then what Legation has installed, then PATH."""
        installed = [
            folder.version(each.version)
            for agent in _AGENTS
            if data_dir
            for folder in (InstallFolder.of(data_dir, agent),)
            for each in folder.versions()
        ]
        return cls((*extra, *installed), environ.get("PATH", os.defpath))

    def package(self, name: str) -> Path | None:
        """The newest one of an npm package."""
        found = [folder / "node_modules" / name for folder in self.folders]
        there = [folder for folder in found if (folder / "package.json").is_file()]
        return max(there, key=lambda folder: _ordered(version_of(folder)), default=None)

    def program(self, patterns: Iterable[str], on_path: str) -> Path | None:
        """The first one; patterns are for below `node_modules`."""
        for pattern in patterns:
            for folder in self.folders:
                for found in sorted((folder / "node_modules").glob(pattern)):
                    return found
        on = shutil.which(on_path, path=self.path)
        return Path(on) if on else None


class Package(msgspec.Struct):
    version: str
    claude_code_version: str = msgspec.field(default="", name="claudeCodeVersion")


def package_of(folder: Path) -> Package:
    return msgspec.json.decode((folder / "package.json").read_bytes(), type=Package)


def version_of(folder: Path) -> str:
    return package_of(folder).version


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


# A program that is started.


ANSWER_LIMIT: Final = 60.0  # seconds for a program to start and to say what it is asked: its time
STOP_GRACE: Final = 1.0  # seconds to end by itself: there is nothing to finish


@dataclass(frozen=True, slots=True)
class AskedProgram:
    """One program and the folder it may write to."""

    agent: str
    program: Path
    folder: Path
    env: Mapping[str, str]

    async def said(self, *args: str) -> str:
        """Its whole output."""
        async with self.running(*args) as child:
            child.close_stdin()
            try:
                async with asyncio.timeout(ANSWER_LIMIT):
                    lines = [line async for block in child.lines() for line in block]
                    ended = await child.wait()
            except TimeoutError:
                raise TimedOut(
                    f"cannot read the schema of {self.agent}: {self.program.name} did not answer within"
                    f" {ANSWER_LIMIT:g} s; try again"
                ) from None
        if ended.code != 0:
            raise AgentError(
                f"cannot read the schema of {self.agent}: {self.program.name} ended with {ended};"
                " see whether it runs by hand"
            )
        return b"\n".join(lines).decode(errors="replace")

    @asynccontextmanager
    async def running(self, *args: str) -> AsyncIterator[Child]:
        command = Command((str(self.program.absolute()), *args), self.folder / "work", self.env, self.agent)
        child = await ProcessLauncher().spawn(command)
        try:
            yield child
        finally:
            await asyncio.shield(child.stop(STOP_GRACE))


@asynccontextmanager
async def asked_program(
    agent: str, program: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[AskedProgram]:
    with tempfile.TemporaryDirectory(prefix="legation-schema-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for each in ("home", "work", "tmp"):
            (folder / each).mkdir()
        passed = {**NO_WAY_OUT, **(settings or {})}
        env = child_environment(passed, home=folder / "home", tmp=folder / "tmp")
        yield AskedProgram(agent, program, folder, env)
