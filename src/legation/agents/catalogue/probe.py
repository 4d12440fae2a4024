"""An agent that is started outside any session: to be asked what it is and offers, to be examined, to be signed in to.

One that is only asked gets a clean environment, a home and a folder that are new and go with it, placeholders for its key,
and addresses for its model and its proxies that lead nowhere: it reaches nobody and spends nothing. Every wait is bounded,
and nothing of it stays. The sign-in is the agent's own, in the agent's home, never in the user's: a program has the
person's terminal, and what is typed and shown is between the two; others sign in by ACP, where the agent opens a browser
and answers when the person is done there.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from legation.agents.acp import AcpAgent
from legation.agents.catalogue.catalogue import LOCAL, Catalogue, opened_home
from legation.agents.catalogue.program import Start
from legation.agents.driver import Driver, OpenRequest
from legation.agents.drivers import open_driver
from legation.agents.native import DriverContext
from legation.agents.pool import Pool
from legation.agents.rpc import RpcFault
from legation.errors import CapabilityUnsupported, ConfigInvalid, LegationError
from legation.proc import Command, Launcher, Pipes, ProcessLauncher, child_environment
from legation.wire.acp.methods import ClientCapabilities, NewSessionResponse
from legation.wire.acp.rpc import ErrorCode
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

ANSWER_LIMIT: Final = 60.0  # seconds for the handshake, and again for a session: the agent's time to start
STOP_GRACE: Final = 1.0  # seconds to end by itself: nothing of it is kept, so that there is nothing to finish
# Some look for news or plug-ins at their start, whatever they are told about their model; and some talk to parts of
# themselves over loopback.
_PROXIES: Final = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    "NO_PROXY": "127.0.0.1,localhost",
}
NO_WAY_OUT: Final = _PROXIES | {name.lower(): value for name, value in _PROXIES.items()}


@dataclass(frozen=True, slots=True)
class Probed:
    """`setup` is None where no session was asked for, or the agent refused one: then `refusal` says why."""

    seconds: float
    protocol: int
    version: str | None
    sign_in_ways: tuple[str, ...]
    setup: NewSessionResponse | None = None
    refusal: str | None = None


class NullListener:
    """A listener to an agent that nobody is interested in, and that may do nothing."""

    def updates(self, session_id: str, drafts: list[Draft]) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def notification(self, method: str, params: bytes) -> None: ...
    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None: ...

    def request(self, method: str, params: bytes) -> Awaitable[object]:  # noqa: ARG002
        raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"{method} is not offered")


async def probe(
    name: str,
    start: Start,
    placeholders: Mapping[str, str],
    *,
    session: bool,
    key_method: str | None = None,
    launcher: Launcher | None = None,
    timeout: float = ANSWER_LIMIT,
) -> Probed:
    """Raises what starting it and the handshake raise. With `key_method` it is told to use the placeholder key."""
    with tempfile.TemporaryDirectory(prefix="legation-probe-", ignore_cleanup_errors=True) as folder:
        command = _command(name, start, placeholders, Path(folder))
        began = time.monotonic()
        context = DriverContext(
            command, launcher or ProcessLauncher(), Pipes(), NullListener(), Pool(), lambda _folder: False
        )
        agent = await open_driver(start.driver, context)
        try:
            await agent.initialize(ClientCapabilities(), timeout)
            seconds = time.monotonic() - began
            setup, refusal = (
                await _session(agent, str(command.cwd), key_method, timeout) if session else (None, None)
            )
            info = agent.info
            return Probed(
                round(seconds, 3),
                agent.version,
                info.version if info else None,
                tuple(way.id for way in agent.auth_methods),
                setup,
                refusal,
            )
        finally:
            await asyncio.shield(agent.stop(STOP_GRACE))


async def _session(
    agent: Driver, cwd: str, key_method: str | None, timeout: float
) -> tuple[NewSessionResponse | None, str | None]:
    try:
        if key_method in {way.id for way in agent.auth_methods}:
            await agent.authenticate(str(key_method), timeout)
        return await agent.new_session(OpenRequest(cwd), timeout), None
    except LegationError as error:
        return None, error.message


def _command(name: str, start: Start, placeholders: Mapping[str, str], folder: Path) -> Command:
    """Home, work and temporary files side by side: some agents want none of them above another."""
    places = {place: folder / place for place in ("home", "work", "tmp")}
    for place in places.values():
        place.mkdir()
    passed = {**start.env, **NO_WAY_OUT, **placeholders}
    env = child_environment(passed, home=places["home"], tmp=places["tmp"])
    return Command(start.argv, places["work"], env, name)


# Whether it works here.

Verdict = Literal["ok", "absent", "broken"]


class AgentHealth(msgspec.Struct, frozen=True):
    """`absent` is what is not on this machine, or cannot be run by this Legation: no fault of anybody's."""

    agent: str
    verdict: Verdict
    says: str
    next: str = ""
    seconds: float | None = None


async def examine(
    catalogue: Catalogue, name: str, *, launcher: Launcher | None = None, timeout: float = ANSWER_LIMIT
) -> AgentHealth:
    agent, entry = catalogue.agent(name), catalogue.entry(name)
    install = f"legation agents install {agent.name}"
    if agent.how is None:
        advice = install if entry.origin == "known" else ""
        return AgentHealth(agent.name, "absent", agent.problem or "", advice)
    try:
        start = catalogue.start(agent.name)
        found = await probe(
            agent.name, start, entry.stand_ins, session=False, launcher=launcher, timeout=timeout
        )
    except LegationError as error:
        advice = f"legation agents verify {agent.name}" if agent.how == "installed" else ""
        return AgentHealth(agent.name, "broken", error.message, advice)
    version = agent.version or found.version or ""
    says = f"{agent.how} {version}".rstrip() + f", answers in {found.seconds:.1f} s, ACP {found.protocol}"
    if agent.outdated:
        return AgentHealth(agent.name, "ok", f"{says}; {agent.wanted} is locked", install, found.seconds)
    return AgentHealth(agent.name, "ok", says, _next(catalogue, agent.name, agent.sign_in), found.seconds)


def _next(catalogue: Catalogue, name: str, sign_in: str) -> str:
    if sign_in != "signed out" or catalogue.entry(name).sign_in is None:
        return ""
    return f"legation agents login {name}"


# The agent's own sign-in.

PERSON_LIMIT: Final = 900.0  # seconds to sign in in a browser: the person's time
SIGN_IN_GRACE: Final = 5.0  # seconds for the agent to write down that it is signed in: its time
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
    """Run the program, without a limit: it is the person's time, and Ctrl-C ends it."""
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
        NullListener(),
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
        await asyncio.shield(agent.stop(SIGN_IN_GRACE))
