from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from legation.agents.rpc import RpcFault
from legation.host.requests.handlers import OwnedTerminals
from legation.wire.acp.methods import CreateTerminalRequest, TerminalExitStatus, TerminalOutputResponse
from legation.wire.acp.rpc import ErrorCode

LIMIT = 5.0  # seconds for what needs no other process


class Trusting:
    """A handler that checks nothing and numbers its terminals anew in each session."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.count: dict[str, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def create(self, request: CreateTerminalRequest) -> str:
        await self.gate.wait()
        self.count[request.session_id] = self.count.get(request.session_id, 0) + 1
        return f"t{self.count[request.session_id]}"

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        self.calls.append(("output", session_id, terminal_id))
        return TerminalOutputResponse(output=session_id, truncated=False)

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        self.calls.append(("wait_for_exit", session_id, terminal_id))
        return TerminalExitStatus(exit_code=0)

    async def kill(self, session_id: str, terminal_id: str) -> None:
        self.calls.append(("kill", session_id, terminal_id))

    async def release(self, session_id: str, terminal_id: str) -> None:
        self.calls.append(("release", session_id, terminal_id))
        if self.fails:
            raise RuntimeError("it did not work")

    async def cleanup_session(self, session_id: str) -> None:
        self.calls.append(("cleanup_session", session_id, ""))


@pytest.fixture
def inner() -> Trusting:
    return Trusting()


@pytest.fixture
def owned(inner: Trusting) -> OwnedTerminals:
    return OwnedTerminals(inner)


def request(session: str) -> CreateTerminalRequest:
    return CreateTerminalRequest(session_id=session, command="true")


def methods(owned: OwnedTerminals) -> dict[str, Callable[[str, str], Awaitable[object]]]:
    return {
        "output": owned.output,
        "wait_for_exit": owned.wait_for_exit,
        "kill": owned.kill,
        "release": owned.release,
    }


async def refused(owned: OwnedTerminals, session: str, terminal: str) -> None:
    for use in methods(owned).values():
        with pytest.raises(RpcFault) as caught:
            await use(session, terminal)
        assert caught.value.error.code == ErrorCode.INVALID_PARAMS


async def test_terminal_session_ownership_is_enforced_before_the_handler_runs(
    owned: OwnedTerminals, inner: Trusting
) -> None:
    await owned.create(request("s1"))
    terminal = await owned.create(request("s1"))
    await owned.create(request("s2"))
    for session, name in (("s2", terminal), ("s3", terminal), ("s1", "t9"), ("", "")):
        await refused(owned, session, name)
    assert inner.calls == []


async def test_the_owner_reaches_the_handler(owned: OwnedTerminals, inner: Trusting) -> None:
    terminal = await owned.create(request("s1"))
    for use in methods(owned).values():
        await use("s1", terminal)
    assert inner.calls == [(name, "s1", terminal) for name in methods(owned)]


async def test_two_sessions_may_have_terminals_of_one_name(owned: OwnedTerminals) -> None:
    assert [await owned.create(request(session)) for session in ("s1", "s2")] == ["t1", "t1"]
    await owned.release("s1", "t1")
    await refused(owned, "s1", "t1")
    assert (await owned.output("s2", "t1")).output == "s2"


async def test_a_terminal_is_forgotten_even_if_its_release_fails(
    owned: OwnedTerminals, inner: Trusting
) -> None:
    terminal = await owned.create(request("s1"))
    inner.fails = True
    with pytest.raises(RuntimeError):
        await owned.release("s1", terminal)
    await refused(owned, "s1", terminal)


async def test_a_cleaned_up_session_has_no_terminals(owned: OwnedTerminals, inner: Trusting) -> None:
    kept = await owned.create(request("s2"))
    terminal = await owned.create(request("s1"))
    await owned.cleanup_session("s1")
    await owned.cleanup_session("never seen")
    await refused(owned, "s1", terminal)
    assert inner.calls == [("cleanup_session", "s1", ""), ("cleanup_session", "never seen", "")]
    await owned.output("s2", kept)


async def test_a_terminal_that_comes_after_its_sessions_cleanup_is_released(
    owned: OwnedTerminals, inner: Trusting
) -> None:
    inner.gate.clear()
    late = asyncio.create_task(owned.create(request("s1")))
    await asyncio.sleep(0)
    await owned.cleanup_session("s1")
    new = asyncio.create_task(owned.create(request("s1")))  # of a session that was opened again
    await asyncio.sleep(0)
    inner.gate.set()
    async with asyncio.timeout(LIMIT):
        with pytest.raises(RpcFault, match="closed"):
            await late
        assert await new == "t2"
    assert inner.calls == [("cleanup_session", "s1", ""), ("release", "s1", "t1")]
    await refused(owned, "s1", "t1")
    await owned.output("s1", "t2")
