import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agents.bytes_agent import scripted

from legation.agents.acp import AcpAgent
from legation.agents.driver import OpenRequest
from legation.agents.rpc import AgentRefused, RpcFault
from legation.errors import (
    AgentError,
    AgentExited,
    CapabilityUnsupported,
    InvalidParams,
    LegationError,
    TimedOut,
)
from legation.proc import Command, Pipes, ProcessLauncher, child_environment
from legation.wire.acp.methods import (
    ClientCapabilities,
    ClientSessionCapabilities,
    ConfigOptionsCapabilities,
    McpServer,
    PromptResponse,
    SessionSetup,
    Supported,
)
from legation.wire.acp.updates import BooleanOption, SelectOption, Text, Unread
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

pytestmark = pytest.mark.heavy  # a process or more for each test


LIMIT = 30.0  # seconds for an agent to start and answer, on a busy machine


class Box:
    def __init__(self) -> None:
        self.got: list[str] = []

    def updates(self, _: str, drafts: list[Draft]) -> None:
        self.got += [draft.type for draft in drafts]

    def trouble(self, code: DiagnosticCode, _: str) -> None:
        self.got.append(code)

    def notification(self, method: str, _: bytes) -> None:
        self.got.append(method)

    def request(self, method: str, _: bytes) -> Awaitable[object]:
        raise RpcFault(-32601, method)

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        return


OFFER = ClientCapabilities(
    session=ClientSessionCapabilities(config_options=ConfigOptionsCapabilities(boolean=Supported()))
)
ALL = {
    "loadSession": True,
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {}},
    "auth": {"logout": {}},
}
WELCOME = """
def welcome(**declared):
    send(id=serve("initialize"), result={"protocolVersion": 1, **declared})
"""
SSE = McpServer(name="tickets", type="sse", url="http://127.0.0.1:9/")


async def begin(command: Command, box: Box | None = None) -> AcpAgent:
    return await AcpAgent.start(
        ProcessLauncher(), command, box or Box(), pipes=Pipes(), capabilities=OFFER, timeout=LIMIT
    )


async def start(source: str, folder: Path, box: Box | None = None) -> AcpAgent:
    return await begin(scripted(WELCOME + source, folder), box)


@asynccontextmanager
async def acting(source: str, folder: Path, capabilities: object = ALL) -> AsyncIterator[AcpAgent]:
    """A scripted agent that has declared these capabilities."""
    agent = await start(f"welcome(agentCapabilities={capabilities!r})\n{source}\nstay()", folder)
    try:
        yield agent
    finally:
        await agent.stop(0)


@asynccontextmanager
async def rehearsing(folder: Path, *options: str, box: Box | None = None) -> AsyncIterator[AcpAgent]:
    argv = (sys.executable, "-m", "legation.agents.rehearsal", "--execute", *options)
    command = Command(argv, folder, child_environment({}, home=folder, tmp=folder), "rehearsal")
    agent = await begin(command, box)
    try:
        yield agent
    finally:
        await agent.stop(LIMIT)


async def play(agent: AcpAgent, session_id: str, *steps: str) -> None:
    await agent.prompt(session_id, (Text(text="\n".join(("#!rehearse", *steps))),))


async def test_the_handshake_says_who_speaks(tmp_path: Path) -> None:
    source = """
message = read()
assert message["params"]["protocolVersion"] == 1 and message["params"]["clientInfo"]["name"] == "legation"
info = {"name": "odd", "version": "3"}
send(id=message["id"], result={"protocolVersion": 1, "agentInfo": info, "agentCapabilities": {"loadSession": True}})
session("abc"); stay()
"""
    agent = await start(source, tmp_path)
    assert agent.hello.agent_info is not None
    assert agent.hello.agent_info.name == "odd"
    assert (await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)).session_id == "abc"
    assert (await agent.stop(LIMIT)).code == 0


async def test_the_answer_to_a_prompt_is_seen_before_what_follows_it(tmp_path: Path) -> None:
    box = Box()
    source = """
hello(); prompt = prompted()
answer = json.dumps({"id": prompt, "result": {"stopReason": "end_turn"}}).encode() + b"\\n"
raw(line("a") + answer + line("b")); stay()
"""
    agent = await start(source, tmp_path, box)

    def on_answer(answer: PromptResponse | AgentError) -> None:
        assert isinstance(answer, PromptResponse)
        box.got.append(answer.stop_reason)

    await agent.prompt("s1", (Text(text="hi"),), on_answer=on_answer)
    await agent.stop(LIMIT)
    assert box.got == ["agent-message-chunk", "end_turn", "agent-message-chunk"]


async def test_what_an_agent_wrote_last_is_handed_on_before_wait_returns(tmp_path: Path) -> None:
    box = Box()
    agent = await start("hello(); raw(line('x') * 5000); os._exit(0)", tmp_path, box)
    assert (await agent.wait()).code == 0
    assert box.got == ["agent-message-chunk"] * 5000


@pytest.mark.parametrize("result", ["{}", "[]", "None", "{'sessionId': 5}"])
async def test_an_answer_that_cannot_be_understood_is_an_error_that_names_the_agent(
    tmp_path: Path, result: str
) -> None:
    agent = await start(f"hello(); send(id=serve('session/new'), result={result}); stay()", tmp_path)
    with pytest.raises(AgentError, match="'scripted' to session/new"):
        await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
    await agent.stop(LIMIT)


async def test_a_call_to_an_agent_that_has_ended_says_how(tmp_path: Path) -> None:
    agent = await start("hello(); os.write(2, b'over'); os._exit(9)", tmp_path)
    await agent.wait()
    for _ in range(2):
        with pytest.raises(AgentExited, match="exit code 9") as caught:
            await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
        assert "over" in caught.value.message


async def test_stop_twice_is_stop_once(tmp_path: Path) -> None:
    agent = await start("hello(); stay()", tmp_path)
    assert await agent.stop(LIMIT) == await agent.stop(LIMIT) == await agent.wait()


async def test_what_the_agent_announced_is_at_hand_typed_and_as_it_came(tmp_path: Path) -> None:
    async with rehearsing(tmp_path) as agent:
        assert agent.version == 1
        assert agent.info is not None
        assert agent.info.name == "rehearsal"
        assert [way.id for way in agent.auth_methods] == ["rehearsal-login"]
        assert agent.capabilities.prompt_capabilities.embedded_context
        assert agent.can_load
        assert agent.can_resume
        assert agent.can_list
        assert agent.can_close
        assert agent.can_delete
        assert agent.announced["agentCapabilities"]


async def test_a_handshake_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    source = """
send(id=serve("initialize"), result={"protocolVersion": 1, "agentInfo": {"name": 5}, "news": [],
  "authMethods": [{"id": "a", "name": "A", "env": 7}, {"id": 3}, {"id": "b", "name": "B", "type": "env_var"}],
  "agentCapabilities": {"loadSession": "yes", "promptCapabilities": None, "mcpCapabilities": {"http": True, "sse": 1},
                        "sessionCapabilities": {"list": True, "resume": {"x": 1}, "close": None}}})
stay()
"""
    agent = await start(source, tmp_path)
    assert agent.info is None
    assert [way.id for way in agent.auth_methods] == ["a", "b"]
    assert agent.capabilities.mcp_capabilities.http
    assert agent.can_resume
    assert not any((agent.can_load, agent.can_list, agent.can_close, agent.can_delete))
    await agent.stop(0)


@pytest.mark.parametrize("version", [0, 2, 65535])
async def test_an_agent_of_another_version_is_not_talked_to(tmp_path: Path, version: int) -> None:
    with pytest.raises(AgentError, match=f"'scripted': it speaks version {version} of the protocol, not 1"):
        await start(f"hello({version}); stay()", tmp_path)


@pytest.mark.parametrize("result", ["None", "[]", "{}", "{'protocolVersion': '1'}"])
async def test_a_handshake_without_a_version_is_an_error_that_names_it(tmp_path: Path, result: str) -> None:
    with pytest.raises(AgentError, match="answer of 'scripted' to initialize"):
        await start(f"send(id=serve('initialize'), result={result}); stay()", tmp_path)


async def test_an_agent_that_wants_a_login_says_which_and_takes_it(tmp_path: Path) -> None:
    async with rehearsing(tmp_path, "--require-auth") as agent:
        for _ in range(2):
            with pytest.raises(AgentRefused, match=r"sign in first with one of 'Rehearsal login'") as caught:
                await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
            assert caught.value.error.code == -32000
            assert caught.value.data is not None
            assert [way["id"] for way in caught.value.data["authMethods"]] == ["rehearsal-login"]  # type: ignore[attr-defined]
            await agent.authenticate("rehearsal-login", LIMIT)
            await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
            await agent.logout(LIMIT)


async def test_only_a_login_that_may_be_called_is(tmp_path: Path) -> None:
    source = """
send(id=serve("initialize"), result={"protocolVersion": 1,
     "authMethods": [{"id": "tui", "name": "T", "type": "terminal", "env": {"KEY": "hunter2"}}]})
send(id=serve("session/new"), error={"code": -32000, "message": "who are you"}); stay()
"""
    agent = await start(source, tmp_path)
    with pytest.raises(InvalidParams, match="run the agent in a terminal"):
        await agent.authenticate("tui", LIMIT)
    with pytest.raises(InvalidParams, match="it offers tui"):
        await agent.authenticate("other", LIMIT)
    with pytest.raises(AgentRefused, match=r"'T' \(tui\)") as caught:
        await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
    assert "hunter2" not in str(caught.value.args)
    await agent.stop(0)


async def test_a_session_is_loaded_with_its_history_before_the_answer(tmp_path: Path) -> None:
    box = Box()
    async with rehearsing(tmp_path, box=box) as agent:
        session = await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
        await play(agent, session.session_id, "title Kept", "say one")
        await agent.close_session(session.session_id, LIMIT)
        box.got.clear()
        setup = await agent.load_session(
            OpenRequest(str(tmp_path), session_id=session.session_id),
            LIMIT,
            on_answer=lambda _: box.got.append("answer"),
        )
        assert setup.modes is not None
        assert setup.modes.current_mode_id == "default"
        assert "session-info-update" in box.got[:-1]
        assert box.got[-1] == "answer"


async def test_a_session_is_resumed_without_its_history(tmp_path: Path) -> None:
    box = Box()
    async with rehearsing(tmp_path, box=box) as agent:
        session = await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)
        await play(agent, session.session_id, "say one")
    async with rehearsing(tmp_path, box=box) as agent:
        box.got.clear()
        setup = await agent.resume_session(OpenRequest(str(tmp_path), session_id=session.session_id), LIMIT)
        assert setup.config_options
        assert box.got == []
        await play(agent, session.session_id, "recall")
        assert box.got


async def test_updates_around_the_answer_to_load_keep_their_places(tmp_path: Path) -> None:
    box = Box()
    source = """
welcome(agentCapabilities={"loadSession": True}); number = serve("session/load")
answer = json.dumps({"id": number, "result": None}).encode() + b"\\n"
raw(line("a") + line("b") + answer + line("c")); stay()
"""
    agent = await start(source, tmp_path, box)

    def on_answer(setup: SessionSetup | AgentError) -> None:
        assert setup == SessionSetup()
        box.got.append("answer")

    assert (
        await agent.load_session(OpenRequest("/", session_id="s"), LIMIT, on_answer=on_answer)
        == SessionSetup()
    )
    await agent.stop(LIMIT)
    assert box.got == [*["agent-message-chunk"] * 2, "answer", "agent-message-chunk"]


async def test_a_refused_load_is_told_in_its_place_and_raised(tmp_path: Path) -> None:
    seen: list[object] = []
    async with rehearsing(tmp_path) as agent:
        with pytest.raises(AgentRefused, match="session/load") as caught:
            await agent.load_session(
                OpenRequest(str(tmp_path), session_id="nobody"), LIMIT, on_answer=seen.append
            )
    assert seen == [caught.value]
    assert caught.value.error.code == -32002


async def test_sessions_are_listed_page_by_page_and_by_folder(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with rehearsing(tmp_path) as agent:
        made = {(await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)).session_id for _ in range(24)}
        await agent.new_session(OpenRequest(str(other)), LIMIT)
        first = await agent.list_sessions(str(tmp_path), None, LIMIT)
        second = await agent.list_sessions(str(tmp_path), first.next_cursor, LIMIT)
        assert (len(first.sessions), second.next_cursor) == (20, None)
        assert {each.session_id for each in first.sessions + second.sessions} == made
        assert len((await agent.list_sessions(None, first.next_cursor, LIMIT)).sessions) == 4


async def test_a_list_leaves_out_what_is_no_session(tmp_path: Path) -> None:
    page = {"sessions": [{"sessionId": "a", "cwd": "/", "title": 5}, {"cwd": "/"}, None], "nextCursor": 3}
    async with acting(f"send(id=serve('session/list'), result={page!r})", tmp_path) as agent:
        found = await agent.list_sessions(None, None, LIMIT)
        assert [(each.session_id, each.title) for each in found.sessions] == [("a", None)]
        assert found.next_cursor is None


async def test_what_is_not_there_is_closed_and_deleted(tmp_path: Path) -> None:
    async with rehearsing(tmp_path) as agent:
        session = (await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)).session_id
        for _ in range(2):
            await agent.close_session(session, LIMIT)
        for _ in range(2):
            await agent.delete_session(session, LIMIT)
        assert (await agent.list_sessions(None, None, LIMIT)).sessions == ()


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
async def test_not_found_is_success_and_another_error_is_not(tmp_path: Path, method: str) -> None:
    source = f"""
send(id=serve({method!r}), error={{"code": -32002, "message": "gone"}})
send(id=serve({method!r}), error={{"code": -32603, "message": "broken"}})
"""
    async with acting(source, tmp_path) as agent:
        end = agent.close_session if method == "session/close" else agent.delete_session
        await end("s", LIMIT)
        with pytest.raises(AgentRefused, match=f"cannot complete {method}.*broken"):
            await end("s", LIMIT)


async def test_modes_and_options_are_set(tmp_path: Path) -> None:
    async with rehearsing(tmp_path) as agent:
        session = (await agent.new_session(OpenRequest(str(tmp_path)), LIMIT)).session_id
        await agent.set_mode(session, "plan", LIMIT)
        await agent.set_config_option(session, "model", "rehearsal-terse", LIMIT)
        now = await agent.set_config_option(session, "thoughts", value=False, timeout=LIMIT)
        model, thoughts = now.config_options
        assert isinstance(model, SelectOption)
        assert isinstance(thoughts, BooleanOption)
        assert (model.current_value, thoughts.current_value) == ("rehearsal-terse", False)
        setup = await agent.resume_session(OpenRequest(str(tmp_path), session_id=session), LIMIT)
        assert setup.modes is not None
        assert setup.modes.current_mode_id == "plan"
        with pytest.raises(AgentRefused, match="session/set_mode"):
            await agent.set_mode(session, "no such mode", LIMIT)


async def test_a_boolean_option_is_sent_as_one(tmp_path: Path) -> None:
    source = """
for _ in range(2):
    message = read(); params = message["params"]
    send(id=message["id"], error={"code": 1, "message": json.dumps([params["value"], params.get("type")])})
"""
    async with acting(source, tmp_path) as agent:
        for value, sent in ((True, '[true, "boolean"]'), ("true", '["true", null]')):
            with pytest.raises(AgentRefused) as caught:
                await agent.set_config_option("s", "o", value, LIMIT)
            assert caught.value.error.message == sent


@pytest.mark.parametrize(
    "result", ["{}", "None", "[]", "'ok'", "{'configOptions': None}", "{'configOptions': 3}"]
)
async def test_an_agent_need_not_say_what_its_options_are_now(tmp_path: Path, result: str) -> None:
    """Complaint 19."""
    async with acting(f"send(id=serve('session/set_config_option'), result={result})", tmp_path) as agent:
        assert (await agent.set_config_option("s", "o", "v", LIMIT)).config_options == ()


async def test_an_option_of_an_unknown_kind_is_kept(tmp_path: Path) -> None:
    odd = {"type": "slider", "id": "o", "currentValue": 3}
    result = {"sessionId": "s", "configOptions": [odd], "modes": {"currentModeId": "a"}, "models": {"x": 1}}
    async with acting(f"send(id=serve('session/new'), result={result!r})", tmp_path) as agent:
        made = await agent.new_session(OpenRequest("/"), LIMIT)
        assert made.config_options == (Unread(value=odd),)
        assert made.modes is None
        assert made.models == {"x": 1}


async def test_what_was_not_declared_is_refused_with_the_method_and_a_way_out(tmp_path: Path) -> None:
    async with acting("", tmp_path, {}) as agent:
        calls = {
            "session/load": agent.load_session(OpenRequest("/", session_id="s"), LIMIT),
            "session/resume": agent.resume_session(OpenRequest("/", session_id="s"), LIMIT),
            "session/list": agent.list_sessions(None, None, LIMIT),
            "session/close": agent.close_session("s", LIMIT),
            "session/delete": agent.delete_session("s", LIMIT),
            "logout": agent.logout(LIMIT),
        }
        for method, call in calls.items():
            with pytest.raises(CapabilityUnsupported, match=f"cannot call {method}: .*; .+") as caught:
                await call
            assert caught.value.data is not None
            assert caught.value.data["method"] == method


async def test_additional_folders_go_only_to_an_agent_that_declared_them(tmp_path: Path) -> None:
    source = """
for method in ("session/new", "session/load", "session/resume"):
    message = read(); assert message["method"] == method
    send(id=message["id"], result={"sessionId": ",".join(message["params"]["additionalDirectories"])})
"""
    async with acting(source, tmp_path) as agent:
        made = await agent.new_session(OpenRequest("/", additional_directories=("/a", "/b")), LIMIT)
        assert made.session_id == "/a,/b"
        await agent.load_session(OpenRequest("/", additional_directories=("/a",), session_id="s"), LIMIT)
        await agent.resume_session(OpenRequest("/", additional_directories=("/a",), session_id="s"), LIMIT)
    async with rehearsing(tmp_path) as agent:
        with pytest.raises(CapabilityUnsupported, match="additionalDirectories"):
            await agent.new_session(OpenRequest(str(tmp_path), additional_directories=("/a",)), LIMIT)


async def test_an_mcp_server_is_passed_on_or_refused_by_name_and_never_dropped(tmp_path: Path) -> None:
    """Complaint 17."""
    bare = McpServer(name="files", command="serve")
    web = McpServer(name="web", type="http", url="http://127.0.0.1:9/")
    async with rehearsing(tmp_path) as agent:
        await agent.new_session(OpenRequest(str(tmp_path), (bare, web)), LIMIT)
        for server in (SSE, McpServer(name="tickets", type="telepathy")):
            for call in (
                agent.new_session(OpenRequest(str(tmp_path), (bare, server)), LIMIT),
                agent.load_session(OpenRequest(str(tmp_path), (server,), session_id="s"), LIMIT),
                agent.resume_session(OpenRequest(str(tmp_path), (server,), session_id="s"), LIMIT),
            ):
                with pytest.raises(CapabilityUnsupported, match=f"'tickets' by {server.type}"):
                    await call


async def test_stdio_needs_no_capability_and_has_every_list(tmp_path: Path) -> None:
    source = """
message = read()
send(id=message["id"], result={"sessionId": json.dumps(message["params"]["mcpServers"], sort_keys=True)})
"""
    async with acting(source, tmp_path, {}) as agent:
        made = await agent.new_session(OpenRequest("/", (McpServer(name="files", command="serve"),)), LIMIT)
        assert json.loads(made.session_id) == [{"name": "files", "command": "serve", "args": [], "env": []}]


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("session/new", {"sessionId": ["hunter2"], "hunter2": "hunter2"}),
        ("session/load", ["hunter2"]),
        ("session/resume", "hunter2"),
        ("session/list", {"sessions": "hunter2"}),
        ("session/list", None),
    ],
)
async def test_a_wrong_answer_is_an_error_that_names_the_method_and_quotes_nothing(
    tmp_path: Path, method: str, result: object
) -> None:
    async with acting(f"send(id=serve({method!r}), result={result!r})", tmp_path) as agent:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "session/new": lambda: agent.new_session(OpenRequest("/"), LIMIT),
            "session/load": lambda: agent.load_session(OpenRequest("/", session_id="s"), LIMIT),
            "session/resume": lambda: agent.resume_session(OpenRequest("/", session_id="s"), LIMIT),
            "session/list": lambda: agent.list_sessions(None, None, LIMIT),
        }
        with pytest.raises(AgentError, match=f"answer of 'scripted' to {method}") as caught:
            await calls[method]()
        assert "hunter2" not in str(caught.value.args)


async def test_a_call_that_outlasts_its_limit_is_cancelled_at_the_agent(tmp_path: Path) -> None:
    source = """
number = serve("session/list"); note = read()
assert (note["method"], note["params"]) == ("$/cancel_request", {"requestId": number})
send(id=number, error={"code": -32800, "message": "cancelled"})
send(id=serve("session/list"), result={"sessions": []})
"""
    box = Box()
    agent = await start(f"welcome(agentCapabilities={ALL!r})\n{source}\nstay()", tmp_path, box)
    with pytest.raises(TimedOut, match="cannot complete session/list"):
        await agent.list_sessions(None, None, 0.05)
    assert (await agent.list_sessions(None, None, LIMIT)).sessions == ()
    assert box.got == []
    await agent.stop(0)


async def test_every_call_to_an_agent_that_dies_says_so(tmp_path: Path) -> None:
    async with acting("read(); os._exit(4)", tmp_path) as agent:
        seen: list[object] = []
        calls = [
            agent.load_session(OpenRequest("/", session_id="s"), LIMIT, on_answer=seen.append),
            agent.set_mode("s", "m", LIMIT),
            agent.close_session("s", LIMIT),
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [AgentExited] * 3
        assert all("exit code 4" in each.message for each in found if isinstance(each, LegationError))
        assert seen == []
