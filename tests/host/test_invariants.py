"""The invariants of the host, by number, and the tests that show them; here are those that stand nowhere else.

INV-1: an event is committed before anybody sees it
    store/test_log: test_nothing_is_seen_before_it_is_committed
    host/test_order: test_prompt_returns_only_when_its_last_update_is_on_the_disk
    host/test_permissions: test_the_answer_is_on_the_disk_before_the_agent_hears_it
INV-2: `subscribe` gives the exact suffix: no gap, no duplicate, no reordering, for sessions and for the host
    store/test_suffix: test_subscribing_at_any_point_gives_the_exact_suffix
    store/test_log: test_reading_after_any_number_gives_the_exact_suffix
    host/test_host_stream: test_inv_2_a_callback_gets_the_exact_suffix_and_then_what_comes
    host/test_host_stream: test_a_callback_that_always_fails_on_the_hosts_stream_does_not_go_round_for_ever
    host/test_misbehaviour: test_viewers_that_come_late_or_come_back_see_the_same_bytes
INV-3: everything public is plain data
    host/test_invariants: test_inv_3_everything_public_is_plain_data
    host/test_host_stream: test_an_event_that_is_no_json_is_rejected_without_its_payload
    host/test_host_stream: test_a_prompt_that_is_no_json_is_refused_and_the_session_goes_on
INV-4: unknown updates are kept verbatim
    host/test_stray: test_unknown_updates_are_kept_verbatim
    host/test_misbehaviour: test_updates_and_contents_of_no_known_kind_are_kept_as_they_are
    wire/test_normalize: test_an_unrecognized_update_is_kept_whole
INV-5: a failing store disturbs no live stream, and is told
    host/test_storage: test_inv_5_a_failing_disk_is_told_once_and_disturbs_no_live_stream
    store/test_failing_disk: test_a_full_disk_pauses_the_agent_and_loses_nothing
INV-6: what is offered to agents is what is served
    host/test_handlers: test_inv_6_files_are_offered_method_by_method
    host/test_handlers: test_inv_6_a_terminal_handler_without_one_of_its_methods_is_not_offered
    host/test_handlers: test_inv_6_a_complete_terminal_handler_is_offered
    host/test_handlers: test_inv_6_methods_inherited_from_the_seam_are_not_offered
    host/test_handlers: test_inv_6_questions_are_offered_by_mode
    host/test_invariants: test_inv_6_an_agent_is_told_what_it_gets
INV-7: diagnostics name variables, never their values
    host/test_invariants: test_inv_7_a_start_tells_the_names_of_variables_and_no_value
    host/test_options: test_variables_are_not_shown
    host/test_storage: test_no_secret_of_an_mcp_server_is_stored_or_told
INV-8: a permission is answered exactly once
    host/test_invariants: test_inv_8_a_second_answer_is_refused_and_changes_nothing
    host/test_permissions: test_a_decision_is_recorded_once_and_told_as_a_once_option
    host/test_permissions: test_two_permissions_at_once_are_answered_each_by_its_own_decision
"""

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest
from tests.host.docstring_lists import listed, missing
from tests.host.host_events import events_of, told, until_told
from tests.host.rig import of_type, play, rig

from legation.errors import AlreadyAnswered, InvalidParams, NotFound
from legation.host.host import AcpHost
from legation.host.options import HostOptions
from legation.wire.acp.methods import ReadTextFileRequest, ReadTextFileResponse, SelectedOutcome
from legation.wire.acp.updates import Text
from legation.wire.event_types import Diagnostic, PermissionUpdated

INVARIANTS = 8
LIMIT = 60.0  # seconds for one agent's start and turn, on a busy machine


def test_every_invariant_is_listed_with_tests_that_exist() -> None:
    found = listed(__doc__)
    assert list(found) == [f"INV-{number}" for number in range(1, INVARIANTS + 1)]
    assert missing(found) == []


async def test_inv_3_everything_public_is_plain_data(tmp_path: Path) -> None:
    """It goes over a wire and comes back the same."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        answers = [
            await made.host.prompt(session.id, (Text(text="#!rehearse\nerror -32000 no"),)),
            await made.host.list_sessions(session.agent_id),
            await made.host.set_config_option(session.id, "model", "rehearsal-terse"),
            made.host.get_agents(),
            made.host.get_sessions(),
            *[event async for event in session.stream.subscribe(follow=False)],
        ]
        for answer in answers:
            plain = msgspec.to_builtins(answer)
            assert plain
            assert json.loads(msgspec.json.encode(plain)) == json.loads(msgspec.json.encode(answer))
        for snapshot in (*made.host.get_agents(), *made.host.get_sessions()):
            assert msgspec.convert(msgspec.to_builtins(snapshot), type(snapshot)) == snapshot


class OnlyReads:
    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        return ReadTextFileResponse(content=f"of {request.path}")


async def test_inv_6_an_agent_is_told_what_it_gets(tmp_path: Path) -> None:
    source = """
asked = read(); send(id=asked["id"], result={"protocolVersion": 1}); session(); prompt = prompted()
found = [asked["params"]["clientCapabilities"]]
for method in ("fs/read_text_file", "fs/write_text_file", "terminal/create", "elicitation/create"):
    send(id=method, method=method, params={"sessionId": "s1", "path": "/x", "content": ""})
    found.append(answer(method).get("error", {}).get("code"))
update(json.dumps(found)); done(prompt); stay()
"""
    async with rig(tmp_path, fs=OnlyReads()) as made:
        session = await made.script(source)
        await session.prompt((Text(text="go"),))
        (heard,) = await of_type(session, "agent-message-chunk")
        offered, *answered = json.loads(json.loads(heard.payload)["content"]["text"])
        assert offered["fs"].get("readTextFile") is True
        assert not offered["fs"].get("writeTextFile")
        assert not offered.get("terminal")
        assert "elicitation" not in offered
        assert answered == [None, -32601, -32601, -32601]


async def test_inv_7_a_start_tells_the_names_of_variables_and_no_value(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse(env={"API_KEY": "s3cret-canary"})
        await play(session, "env API_KEY")
        (spawn,) = [each for each in await told(made.host, Diagnostic) if each.code == "agent/spawn"]
        assert spawn.data is not None
        assert {"API_KEY", "HOME", "PATH"} <= set(spawn.data["env"])  # type: ignore[call-overload]
        assert not any(b"canary" in event.raw for event in await events_of(made.host))


async def test_inv_8_a_second_answer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Through `respond_permission`, which answers where the host was given no approver."""
    options = HostOptions(data_dir=tmp_path / "data", kill_timeout_ms=500)
    async with asyncio.timeout(LIMIT), AcpHost(options) as host:
        agent = await host.spawn_agent(_rehearsal(tmp_path))
        opened = await host.create_session(agent.agent_id, cwd=tmp_path)
        prompting = asyncio.create_task(
            host.prompt(opened.session_id, (Text(text="#!rehearse\nask something"),))
        )
        asked = await _pending(host)
        with pytest.raises(InvalidParams):
            host.respond_permission(asked.id, SelectedOutcome(option_id="no-such-option"))
        assert asked.ask is not None
        chosen = next(each for each in asked.ask.options if each.kind == "allow_once")
        host.respond_permission(asked.id, SelectedOutcome(option_id=chosen.option_id), by="test")
        for _ in range(2):
            with pytest.raises(AlreadyAnswered):
                host.respond_permission(asked.id, SelectedOutcome(option_id=chosen.option_id))
        assert (await prompting).stop_reason == "end_turn"
        with pytest.raises(AlreadyAnswered):
            host.respond_permission(asked.id, SelectedOutcome(option_id=chosen.option_id))
        with pytest.raises(NotFound):
            host.respond_permission("apr_unknown", SelectedOutcome(option_id="x"))
        found = await told(host, PermissionUpdated)
        assert [(each.state, each.by) for each in found] == [("pending", None), ("answered", "test")]


def _rehearsal(place: Path) -> dict[str, object]:
    return {"command": sys.executable, "args": ["-m", "legation.agents.rehearsal", "--execute"], "cwd": place}


async def _pending(host: AcpHost) -> PermissionUpdated:
    return await until_told(host, PermissionUpdated, lambda each: each.state == "pending")
