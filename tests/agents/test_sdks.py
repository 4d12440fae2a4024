"""Agents built on the official SDKs, Python and TypeScript, driven by the host: independent counterparts.

What these SDKs lose or reorder as clients, the host as a client must not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import real_agents
from tests.agents.sdk_python_agent import CRASH, REPLAYED
from tests.host.rig import NO, YES, Hand, Rig, definition_of, events, of_type, rig, until_status, until_type

from legation.agents.rpc import RpcFault, RpcPeer
from legation.errors import AgentExited
from legation.host.options import Backoff
from legation.host.requests.handlers import DenyAll
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc import Command, ProcessLauncher, child_environment
from legation.store.jsonl import JsonlBackend
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import Text
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

pytestmark = pytest.mark.heavy  # a process or more for each test


HERE = Path(__file__).parent
FLOOD = 2000
LIMIT = 60.0  # seconds for a handshake and a load, the start of an interpreter on a busy machine included
HISTORY = [str(number) for number in range(REPLAYED)]
LOADED = ["session-reset", *["agent-message-chunk"] * REPLAYED, "session-status"]

# The first one may install.
_FROM_NPM = (pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600))


def typescript() -> tuple[str, ...]:
    try:
        folder = real_agents.install("typescript-sdk") / "node_modules" / "@agentclientprotocol" / "sdk"
        main = folder / json.loads((folder / "package.json").read_text())["main"]
        return (str(real_agents.node()), str(HERE / "ts_agent.mjs"), str(main))
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["python", pytest.param("typescript", marks=_FROM_NPM)])
def argv(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """How the agent is started."""
    if request.param == "typescript":
        return typescript()
    return (sys.executable, "-I", str(HERE / "sdk_python_agent.py"))


def command(argv: tuple[str, ...], place: Path) -> Command:
    return Command(argv, place, child_environment({}, home=place, tmp=place), "sdk")


async def start(made: Rig, argv: tuple[str, ...]) -> Session:
    return await made.run(command(argv, made.place))


async def ask(session: Session, line: str) -> PromptResult:
    return await session.prompt((Text(text=line),))


async def said(session: Session) -> list[str]:
    return [
        json.loads(event.payload)["content"]["text"]
        for event in await of_type(session, "agent-message-chunk")
    ]


async def statuses(session: Session) -> list[tuple[str, str]]:
    updates = [json.loads(event.payload) for event in await of_type(session, "tool-call", "tool-call-update")]
    return [(each["toolCallId"], each["status"]) for each in updates]


async def test_text_arrives_and_the_turn_ends(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await start(made, argv)
        result = await ask(session, "say hello there, ünïcödé \U0001f600")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await said(session) == ["hello there, ünïcödé \U0001f600"]
        assert made.reported == []


async def test_two_thousand_chunks_are_in_order_and_on_the_disk_when_prompt_returns(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await start(made, argv)
        await ask(session, f"flood {FLOOD}")
        files = [path for path in (tmp_path / "log").rglob("*") if path.is_file()]
        stored = b"".join(path.read_bytes() for path in files)
        assert stored.count(b'"type":"agent-message-chunk"') == FLOOD
        assert await said(session) == [str(number) for number in range(FLOOD)]
        found = await events(session)
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert [event.type for event in found[-2:]] == ["prompt-finished", "turn-state"]


async def test_an_allowed_tool_call_is_told_the_once_option(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await start(made, argv)
        assert (await ask(session, "tool make")).stop_reason == "end_turn"
        assert await statuses(session) == [("make", "pending"), ("make", "completed")]
        (asked,) = [json.loads(event.payload) for event in await of_type(session, "permission-asked")]
        assert asked["action"]["command"] == "make"  # the question named the call's id only
        (answered,) = [json.loads(event.payload) for event in await of_type(session, "permission-answered")]
        assert (answered["outcome"], answered["optionId"]) == ("approved", "yes")


async def test_a_denied_tool_call_is_told_the_reject_option(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path, approver=DenyAll()) as made:
        session = await start(made, argv)
        assert (await ask(session, "tool make")).stop_reason == "end_turn"
        assert await statuses(session) == [("make", "pending"), ("make", "failed")]


async def test_two_questions_at_once_get_each_its_own_answer(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await start(made, argv)
        prompting = asyncio.create_task(ask(session, "tools one two"))
        await hand.until_asked(2)
        by_title = {each.title: each.id for each in hand.asked}
        hand.answer(by_title["two"], NO)
        await until_type(session, "tool-call-update")
        hand.answer(by_title["one"], YES)
        await prompting
        assert (await statuses(session))[2:] == [("two", "failed"), ("one", "completed")]


async def test_files_are_written_and_read_through_the_client(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await start(made, argv)
        path = made.work / "new" / "note.txt"
        assert (await ask(session, f"write {path} some text")).error is None
        assert path.read_text() == "some text"
        await ask(session, f"read {path}")
        await ask(session, f"read {made.work / 'none.txt'}")
        await ask(session, f"read {tmp_path / 'outside.txt'}")
        assert await said(session) == ["some text", "error -32002", "error -32602"]


async def test_a_cancelled_turn_ends_and_the_next_one_is_not_hit(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    async with rig(tmp_path) as made:
        session = await start(made, argv)
        prompting = asyncio.create_task(ask(session, "wait hm"))
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        assert (await ask(session, "say next")).stop_reason == "end_turn"
        assert await said(session) == ["hm", "next"]


async def test_a_cancel_answers_the_open_question_with_cancelled(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await start(made, argv)
        prompting = asyncio.create_task(ask(session, "tool make"))
        await hand.until_asked()
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"  # what it does with that outcome only
        assert hand.withdrawn == [hand.asked[0].id]


@pytest.mark.network
@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_a_question_taken_back_is_superseded_and_its_agent_is_told(tmp_path: Path) -> None:
    """Only this SDK can take one back; it takes the error as well as the outcome `cancelled`."""
    async with rig(tmp_path, approver=Hand()) as made:
        session = await start(made, typescript())
        assert (await ask(session, "withdraw make")).stop_reason == "end_turn"
        assert await said(session) == ["error -32800"]
        (answered,) = [json.loads(event.payload) for event in await of_type(session, "permission-answered")]
        assert answered["outcome"] == "superseded"


async def test_an_error_keeps_code_message_and_data(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await start(made, argv)
        result = await ask(session, "fail -32000 sign in first")
        assert result.error == RpcError(-32000, "sign in first", {"by": "agent"})
        assert (await ask(session, "say on")).error is None


async def test_a_crash_in_mid_turn_tells_the_exit_code_and_keeps_what_was_said(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    async with rig(tmp_path) as made:
        session = await start(made, argv)
        with pytest.raises(AgentExited, match=f"exit code {CRASH}"):
            await ask(session, "crash last words")
        assert await said(session) == ["last words"]


async def test_a_load_returns_when_its_whole_replay_is_on_the_disk(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await start(made, argv)
        await ask(session, "say before")
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        last = (await until_status(session, "disconnected")).seq
        agent = await made.host.spawn_agent(definition_of(command(argv, tmp_path)))

        await made.host.load_session(agent.agent_id, session.id)

        stored = b"".join(path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())
        assert stored.count(b'"type":"session-reset"') == 1
        found = await events(session)
        assert [event.seq for event in found] == list(range(last + 1, last + 1 + len(found)))
        assert [event.type for event in found] == LOADED
        assert await said(session) == HISTORY
        assert all(event.raw in stored for event in found)
        await ask(session, "say after")
        assert await said(session) == [*HISTORY, "after"]


async def test_a_crash_in_mid_turn_is_recovered_from_by_a_load(argv: tuple[str, ...], tmp_path: Path) -> None:
    """These agents cannot resume."""
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await start(made, argv)
        first = session.agent.processes[0]
        with pytest.raises(AgentExited, match=f"exit code {CRASH}"):
            await ask(session, "crash last words")
        reset = await until_type(session, "session-reset")
        await until_status(session, "active", after=reset.seq)
        assert [event.type for event in await events(session)] == LOADED
        assert session.agent.processes[0] != first
        assert (await ask(session, "say on")).error is None
        assert await said(session) == [*HISTORY, "on"]
        assert [each.code for each in made.reported] == [DiagnosticCode.AGENT_RESTART_SCHEDULED]


async def test_one_agent_serves_two_sessions(argv: tuple[str, ...], tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        first = await start(made, argv)
        second = await made.open_another(first)
        await asyncio.gather(ask(first, "flood 300"), ask(second, "flood 200"))
        assert [len(await said(each)) for each in (first, second)] == [300, 200]


@dataclass
class Inbox:
    """Everything in the order in which the connection hands it on."""

    order: list[str] = field(default_factory=list)

    def updates(self, _: str, drafts: list[Draft]) -> None:
        self.order += [json.loads(draft.payload)["content"]["text"] for draft in drafts]

    def trouble(self, code: DiagnosticCode, _: str) -> None:
        self.order.append(code)

    def notification(self, method: str, _: bytes) -> None:
        self.order.append(method)

    def request(self, method: str, _: bytes) -> Awaitable[object]:
        raise RpcFault(-32601, method)

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        return


@asynccontextmanager
async def connected(argv: tuple[str, ...], place: Path, inbox: Inbox) -> AsyncIterator[RpcPeer]:
    async with asyncio.timeout(LIMIT), await ProcessLauncher().spawn(command(argv, place)) as child:
        peer = RpcPeer(child, inbox)
        running = asyncio.create_task(peer.run())
        await peer.call("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        yield peer
        await child.stop(grace=0)
        await running


async def test_the_replay_of_a_load_is_handled_before_its_answer(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    inbox = Inbox()
    handled: list[str] = []
    async with connected(argv, tmp_path, inbox) as peer:
        params = {"sessionId": "old", "cwd": str(tmp_path), "mcpServers": []}
        await peer.call("session/load", params, on_answer=lambda _: handled.extend(inbox.order))
    assert handled == HISTORY
