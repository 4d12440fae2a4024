"""Starting an agent's program only to have its schema: clean environment, a home that goes, no way out.

It has no key, proxies that lead nowhere, and loopback. Every wait is bounded, and nothing of it stays.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.agents.catalogue.probe import NO_WAY_OUT
from legation.errors import AgentError, TimedOut
from legation.proc import Child, Command, ProcessLauncher, child_environment

ANSWER_LIMIT: Final = 60.0  # seconds for a program to start and to say what it is asked: its time
STOP_GRACE: Final = 1.0  # seconds to end by itself: there is nothing to finish


@dataclass(frozen=True, slots=True)
class Asking:
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
async def asking(
    agent: str, program: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Asking]:
    with tempfile.TemporaryDirectory(prefix="legation-schema-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for each in ("home", "work", "tmp"):
            (folder / each).mkdir()
        passed = {**NO_WAY_OUT, **(settings or {})}
        env = child_environment(passed, home=folder / "home", tmp=folder / "tmp")
        yield Asking(agent, program, folder, env)
