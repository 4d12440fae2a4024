"""The agent's own sign-in: with a clean environment, in the agent's own home, never in the user's.

A program has the person's terminal: what is typed and shown is between the two. Others sign in by ACP, where the
agent opens a browser and answers when the person is done there.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from legation.agents.acp import AcpAgent
from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.catalogue.found import Start
from legation.agents.catalogue.home import LOCAL, opened_home
from legation.agents.catalogue.probe import ANSWER_LIMIT, NoInbox
from legation.errors import CapabilityUnsupported, ConfigInvalid
from legation.proc import Command, Pipes, ProcessLauncher, child_environment
from legation.wire.acp.capabilities import ClientCapabilities

PERSON_LIMIT: Final = 900.0  # seconds to sign in in a browser: the person's time
STOP_GRACE: Final = 5.0  # seconds for the agent to write down that it is signed in: its time
# How a browser is found and shown. Only here: an agent at work has no business on anybody's screen.
DESKTOP: Final = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")


def login(
    catalogue: Catalogue, name: str, *, workspace: str = LOCAL, person_limit: float = PERSON_LIMIT
) -> int:
    """The exit code of the agent's program; 0 where there is none and the agent says that it is done."""
    entry, program = catalogue.entry(name), catalogue.sign_in(name)
    start = program or catalogue.start(name)
    with opened_home(catalogue.data_dir, entry.name, workspace) as (home, tmp):
        shown = {each: catalogue.environ[each] for each in DESKTOP if each in catalogue.environ}
        env = child_environment({**start.env, **shown}, home=home, tmp=tmp, base=catalogue.environ)
        if program:
            return _by_program(entry.name, program, env, home)
        method = entry.sign_in.method if entry.sign_in else None
        asyncio.run(_by_acp(Command(start.argv, home, env, entry.name), method, person_limit))
        return 0


def _by_program(agent: str, program: Start, env: dict[str, str], home: Path) -> int:
    """Without a limit: it is the person's time, and Ctrl-C ends it."""
    with _interrupts_are_its_own():
        try:
            return subprocess.call(program.argv, cwd=home, env=env)
        except OSError as error:
            raise ConfigInvalid(
                f"cannot start the sign-in of {agent}: {error.strerror}; look with `legation agents verify {agent}`"
            ) from error


@contextmanager
def _interrupts_are_its_own() -> Iterator[None]:
    """Both are in the terminal's foreground: Ctrl-C reaches the agent, and we wait for what it makes of it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which it would inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _by_acp(command: Command, method: str | None, person_limit: float) -> None:
    agent = await AcpAgent.start(
        ProcessLauncher(),
        command,
        NoInbox(),
        pipes=Pipes(),
        capabilities=ClientCapabilities(),
        timeout=ANSWER_LIMIT,
    )
    try:
        ways = [way.id for way in agent.auth_methods if way.type == "agent"]
        chosen = method if method in ways else next(iter(ways), None)
        if chosen is None:
            raise CapabilityUnsupported(
                f"cannot sign in to {command.name}: it offers no way that needs no key; give it a key"
            )
        await agent.authenticate(chosen, person_limit)
    finally:
        await asyncio.shield(agent.stop(STOP_GRACE))
