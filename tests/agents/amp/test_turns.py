"""Turns with a stand-in that speaks as Amp documents: what is said, asked, continued, cancelled and lost."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from tests.agents.amp.rig import WAIT, Object, allow, nobody, reject, rig

from legation.agents.driver import OpenRequest
from legation.agents.native import ALLOW
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, AgentExited, InvalidParams
from legation.wire.acp.methods import McpServer, RequestPermissionResponse, SelectedOutcome
from legation.wire.acp.rpc import ErrorCode
from legation.wire.acp.updates import Image, ResourceLink, SelectOption, Text

pytestmark = pytest.mark.heavy  # a process or more for each test

WRITE = "tool('create_file', {'path': 'a.txt', 'content': 'x'}, write)"


async def test_a_turn_is_told_with_its_thoughts_and_calls(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        answer = await made.ask(session, f"think('hm'); text('First.'); {WRITE}; text('Done.')")
    assert answer.stop_reason == "end_turn"
    assert [kind for _, kind, _ in made.box.updates_] == [
        "agent-thought-chunk",
        "agent-message-chunk",
        "tool-call",
        "tool-call-update",
        "agent-message-chunk",
    ]
    assert made.box.said() == "First.Done."
    (call,) = made.box.of("tool-call")
    assert (call["kind"], call["locations"]) == ("edit", [{"path": "a.txt"}])
    (update,) = made.box.of("tool-call-update")
    assert update["content"][0] == {"type": "diff", "path": "a.txt", "newText": "x"}  # type: ignore[index]
    assert (made.work / "a.txt").read_text() == "x"
    assert made.left_over() == []
    assert made.box.troubles == []


async def test_a_call_is_asked_about_once_though_it_comes_by_two_ways(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.ask(await made.session(), f"{WRITE}; {WRITE}")
    assert [call["name"] for call in made.box.asked] == ["create_file", "create_file"]
    assert [call["toolCallId"] for call in made.box.asked] == [
        call["toolCallId"] for call in made.box.of("tool-call")
    ]


@pytest.mark.parametrize("lacks", ["plugin", "settings-file"], ids=["by rules alone", "by a plugin alone"])
async def test_a_call_that_is_refused_is_not_made_and_the_turn_goes_on(lacks: str, tmp_path: Path) -> None:
    env = {"AMP_API_KEY": "k", "STANDIN_LACKS": lacks}
    async with rig(tmp_path, env=env, answer=reject) as made:
        answer = await made.ask(await made.session(), f"{WRITE}; text('Then not.')")
    assert answer.stop_reason == "end_turn"
    assert not (made.work / "a.txt").exists()
    (update,) = made.box.of("tool-call-update")
    assert update["status"] == "failed"
    assert "not today" in json.dumps(update)
    assert [call["toolCallId"] for call in made.box.asked] == [update["toolCallId"]]
    assert made.box.said() == "Then not."


async def test_other_arguments_are_acted_on(tmp_path: Path) -> None:
    async def edited(_: Object) -> RequestPermissionResponse:
        meta = {"legation": {"params": {"path": "b.txt", "content": "y"}}}
        return RequestPermissionResponse(outcome=SelectedOutcome(option_id=ALLOW), meta=meta)

    async with rig(tmp_path, answer=edited) as made:
        assert made.agent.takes_edits
        await made.ask(await made.session(), WRITE)
    assert len(made.box.asked) == 1
    assert (made.work / "b.txt").read_text() == "y"


async def test_a_version_without_plugins_takes_no_other_arguments(tmp_path: Path) -> None:
    async with rig(tmp_path, env={"AMP_API_KEY": "k", "STANDIN_LACKS": "plugin"}) as made:
        assert not made.agent.takes_edits


async def test_a_version_that_nobody_could_decide_for_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="has neither plugins nor permission rules"):
        async with rig(tmp_path, env={"STANDIN_LACKS": "plugin settings-file"}):
            pass


async def test_a_tool_that_was_not_asked_about_ends_the_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        with pytest.raises(AgentRefused, match="ran shell_command without asking"):
            await made.ask(session, "tool('shell_command', {'command': 'ls'}, ask=False); stay()")
    assert made.box.of("notice")


async def test_a_tool_of_amps_server_need_not_be_asked_about(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        answer = await made.ask(await made.session(), "tool('web_search', {'query': 'x'}, ask=False)")
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize("lacks", ["stream-json-input", "stream-json-"])
async def test_less_is_asked_of_a_program_that_can_less(lacks: str, tmp_path: Path) -> None:
    async with rig(tmp_path, env={"AMP_API_KEY": "k", "STANDIN_LACKS": lacks}) as made:
        answer = await made.ask(await made.session(), f"text('Hello.'); {WRITE}")
    assert answer.stop_reason == "end_turn"
    assert made.box.said() == "Hello."
    assert "--stream-json" in made.started()[0]
    assert not [word for word in made.started()[0] if lacks in word]
    assert len(made.box.asked) == 1


async def test_plain_output_is_the_answer(tmp_path: Path) -> None:
    async with rig(tmp_path, env={"AMP_API_KEY": "k", "STANDIN_LACKS": "stream-json"}) as made:
        answer = await made.ask(await made.session(), f"text('Hello.'); {WRITE}; text('Bye.')")
    assert answer.stop_reason == "end_turn"
    assert made.box.said() == "Hello.\nBye.\n"
    assert len(made.box.asked) == 1


async def test_an_option_that_is_refused_is_left_out_from_then_on(tmp_path: Path) -> None:
    env = {"AMP_API_KEY": "k", "STANDIN_REFUSES": "--no-color --stream-json-thinking"}
    async with rig(tmp_path, env=env) as made:
        session = await made.session()
        await made.ask(session, "text('Hello.')")
        await made.ask(session, "text('Again.')")
        assert len(made.started()) == 4
    assert made.box.said() == "Hello.Again."
    assert "--no-color" not in made.started()[-1]


async def test_neither_prompt_nor_key_is_in_the_arguments(tmp_path: Path) -> None:
    server = McpServer.stdio("files", "serve", ("a",), {"FILES_KEY": "a-secret"})
    async with rig(tmp_path) as made:
        look = "import json; text(json.dumps(json.load(open(ARGV[ARGV.index('--settings-file') + 1]))['amp.mcpServers']))"
        await made.ask(await made.session((server,)), look)
    assert json.loads(made.box.said()) == {
        "files": {"command": "serve", "args": ["a"], "env": {"FILES_KEY": "a-secret"}}
    }
    assert "a-secret" not in json.dumps(made.started())
    assert "ARGV" not in json.dumps(made.started())


async def test_what_a_program_can_is_asked_once(tmp_path: Path) -> None:
    for _ in range(2):
        async with rig(tmp_path) as made:
            assert made.agent.info is not None
            assert made.agent.info.version == "0.0.1-standin"
    assert made.runs() == [["--version"], ["--help"]]


# Threads.


async def test_the_next_prompt_continues_the_thread(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        await made.ask(session, "text(THREAD)")
        thread = made.box.said()
        await made.ask(session, "text('')")
    assert made.started()[0][:2] != ["threads", "continue"]
    assert made.started()[1][:3] == ["threads", "continue", thread]


async def test_a_session_goes_on_in_another_process(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        await made.ask(session, "text(THREAD)")
        thread = made.box.said()
    async with rig(tmp_path) as made:
        await made.agent.resume_session(OpenRequest(str(made.work), session_id=session), WAIT)
        await made.ask(session, "text('On.')")
        assert made.started()[-1][:3] == ["threads", "continue", thread]
        await made.agent.resume_session(
            OpenRequest(str(made.work), session_id=thread), WAIT
        )  # and one that Amp itself began


@pytest.mark.parametrize("session_id", ["amp_unknown", "../../etc/passwd", ""])
async def test_a_session_that_is_not_known_is_not_resumed(session_id: str, tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(AgentRefused) as caught:
            await made.agent.resume_session(OpenRequest(str(made.work), session_id=session_id), WAIT)
    assert caught.value.error.code == ErrorCode.RESOURCE_NOT_FOUND


async def test_a_version_that_cannot_continue_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path, env={"AMP_API_KEY": "k", "STANDIN_LACKS": "continue"}) as made:
        session = await made.session()
        await made.ask(session, "text('One.')")
        with pytest.raises(AgentRefused, match="cannot continue a thread"):
            await made.ask(session, "text('Two.')")


async def test_two_sessions_run_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        one, two = await made.session(), await made.session()
        await asyncio.gather(made.ask(one, f"text('One.'); {WRITE}"), made.ask(two, "text('Two.')"))
        assert [update["content"]["text"] for update in made.box.of("agent-message-chunk", one)] == ["One."]  # type: ignore[index]
        assert [update["content"]["text"] for update in made.box.of("agent-message-chunk", two)] == ["Two."]  # type: ignore[index]
        assert {argv[0] for argv in made.started()} == {"--settings-file"}


# Ends.


async def test_a_cancelled_turn_leaves_no_process(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        asking = asyncio.create_task(made.ask(session, f"{WRITE}; stay()"))
        await asyncio.wait_for(made.box.asking.wait(), WAIT)
        (pid,) = made.agent.processes
        await made.agent.cancel(session)
        assert (await asking).stop_reason == "cancelled"
        assert (await made.ask(session, "text('On.')")).stop_reason == "end_turn"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert made.left_over() == []


async def test_a_turn_is_cancelled_while_it_asks(tmp_path: Path) -> None:
    async with rig(tmp_path, answer=nobody) as made:
        session = await made.session()
        asking = asyncio.create_task(made.ask(session, WRITE))
        await asyncio.wait_for(made.box.asking.wait(), WAIT)
        await made.agent.cancel(session)
        assert (await asking).stop_reason == "cancelled"
    assert made.box.withdrawn == 1
    assert not (made.work / "a.txt").exists()


async def test_a_turn_can_be_cancelled_before_it_has_begun(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        asking = asyncio.create_task(made.ask(session, "stay()"))
        await asyncio.sleep(0)
        await made.agent.cancel(session)
        assert (await asking).stop_reason == "cancelled"


async def test_a_crash_is_the_turns_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        with pytest.raises(AgentExited, match="SIGKILL") as caught:
            await made.ask(session, "text('Half.'); crash()")
        assert caught.value.data == {"exitCode": None, "signal": signal.SIGKILL}
        assert (await made.ask(session, "text('On.')")).stop_reason == "end_turn"


async def test_a_crash_while_it_asks_takes_the_question_back(tmp_path: Path) -> None:
    async with rig(tmp_path, answer=nobody) as made:
        session = await made.session()
        asking = asyncio.create_task(made.ask(session, WRITE))
        await asyncio.wait_for(made.box.asking.wait(), WAIT)
        os.kill(made.agent.processes[0], signal.SIGKILL)
        with pytest.raises(AgentExited):
            await asking
    assert made.box.withdrawn == 1


async def test_an_error_of_its_server_is_told(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        with pytest.raises(AgentRefused, match="Rate limit exceeded"):
            await made.ask(session, "result('error_during_execution', words='Rate limit exceeded')")
        with pytest.raises(AgentRefused, match="out of credits") as caught:
            await made.ask(session, "fail('Error: out of credits')")
        assert caught.value.error.code == ErrorCode.INTERNAL_ERROR
        with pytest.raises(AgentRefused) as caught:
            await made.ask(session, "fail('Error: 401 Unauthorized')")
        assert caught.value.error.code == ErrorCode.AUTH_REQUIRED


async def test_without_a_key_nobody_waits_for_a_browser(tmp_path: Path) -> None:
    async with rig(tmp_path, env={}) as made:
        session = await made.session()
        with pytest.raises(AgentRefused, match="AMP_API_KEY") as caught:
            await made.ask(session, "text('never')")
    assert caught.value.error.code == ErrorCode.AUTH_REQUIRED
    assert "a-secret-token" not in json.dumps(made.box.troubles)


async def test_what_is_not_understood_is_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.ask(await made.session(), "say({'type': 'news'}); print('hello?', flush=True)")
    assert made.box.of("unrecognized-update") == [{"type": "news"}]
    assert ["hello?" in trouble for trouble in made.box.troubles] == [True]


async def test_a_stopped_agent_gives_its_turns_up(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        asking = asyncio.create_task(made.ask(session, f"{WRITE}; stay()"))
        await asyncio.wait_for(made.box.asking.wait(), WAIT)
        waiting = asyncio.create_task(made.agent.wait())
        await made.agent.stop(grace=0)
        assert (await waiting).code == 0
        with pytest.raises(AgentExited):
            await asking
        with pytest.raises(AgentExited):
            await made.session()
    assert made.left_over() == []


# What can be set.


async def test_its_modes_are_offered_as_models(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        opened = await made.agent.new_session(OpenRequest(str(made.work)), WAIT)
        (option,) = opened.config_options or ()
        assert isinstance(option, SelectOption)
        assert (option.category, option.id) == ("model", "model")
        await made.agent.set_config_option(opened.session_id, "model", "high", WAIT)
        await made.ask(opened.session_id, "text('Hello.')")
        with pytest.raises(InvalidParams):
            await made.agent.set_config_option(opened.session_id, "model", "yolo", WAIT)
        with pytest.raises(InvalidParams):
            await made.agent.set_mode(opened.session_id, "bypass", WAIT)
    argv = made.started()[0]
    assert argv[argv.index("--mode") + 1] == "high"


async def test_a_prompt_is_text(tmp_path: Path) -> None:
    link = ResourceLink(uri="file:///a", name="a")
    async with rig(tmp_path, env={"AMP_API_KEY": "k", "STANDIN_LACKS": "stream-json-input"}) as made:
        session = await made.session()
        prompt = (Text(text="text('''"), link, Text(text="''')"))
        await made.agent.prompt(session, prompt)
        with pytest.raises(InvalidParams, match="type image"):
            await made.agent.prompt(session, (Image(data="", mime_type="image/png"),))
    assert made.box.said().strip() == "[a](file:///a)"


async def test_a_closed_session_is_gone(tmp_path: Path) -> None:
    async with rig(tmp_path, answer=allow) as made:
        session = await made.session()
        await made.agent.close_session(session, WAIT)
        await made.agent.close_session(session, WAIT)
        with pytest.raises(AgentRefused):
            await made.ask(session, "text('never')")


async def test_a_plugin_that_was_changed_is_put_back_before_the_next_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.session()
        (plugin,) = tmp_path.rglob("plugins/legation.ts")
        ours = plugin.read_text()
        plugin.write_text("export default function () {}")
        await made.ask(session, WRITE)
        assert plugin.read_text() == ours
