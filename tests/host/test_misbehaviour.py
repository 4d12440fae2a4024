"""What agents do, and what clients of agents did wrong: the list, and the test that shows that the host does right.

Rows are measured failures of the official SDKs as clients; complaints are what users of other clients report.
Most tests stand where their subject is; here are those that stand nowhere else.

row 1: updates handled out of order when a handler takes its time
    host/test_order: test_updates_requests_and_answers_keep_their_order
    host/test_misbehaviour: test_a_slow_viewer_sees_every_update_in_order
    agents/test_sdks: test_two_thousand_chunks_are_in_order_and_on_the_disk_when_prompt_returns
row 2: a load that returns before its replay was handled
    agents/test_sdks: test_the_replay_of_a_load_is_handled_before_its_answer
    agents/test_sdks: test_a_load_returns_when_its_whole_replay_is_on_the_disk
row 3: 400 KB on stderr
    host/test_end: test_much_stderr_neither_blocks_nor_fills_memory
row 4: a stray null, number, array or string on stdout
    host/test_stray: test_stray_lines_are_reported_and_skipped
row 5: a stray line of text on stdout
    host/test_stray: test_stray_lines_are_reported_and_skipped
    host/test_stray: test_a_line_that_says_nothing_is_reported
row 6: kinds of update and of content that nobody knows, or that nobody asked for
    host/test_stray: test_unknown_updates_are_kept_verbatim
    host/test_misbehaviour: test_updates_and_contents_of_no_known_kind_are_kept_as_they_are
row 7: kinds and statuses of tool calls that nobody knows
    host/test_misbehaviour: test_a_tool_call_of_no_known_kind_is_kept_and_can_be_asked_about
row 8: `_meta` with the names of the message's own members
    host/test_misbehaviour: test_meta_never_takes_the_place_of_the_message
row 9: a request taken back by the agent
    host/test_permissions: test_a_question_taken_back_at_once_is_superseded
    host/test_permissions: test_a_question_taken_back_later_is_answered_with_the_error_and_nobody_is_left_asked
    agents/test_sdks: test_a_question_taken_back_is_superseded_and_its_agent_is_told
row 10: a line of ten megabytes, and one without end
    host/test_stray: test_a_line_of_ten_megabytes_arrives
    host/test_stray: test_a_line_over_the_cap_is_skipped_with_its_size
row 11: an agent that exits with 7 in mid-prompt
    host/test_end: test_a_crash_in_mid_turn_tells_code_and_last_words
    agents/test_sdks: test_a_crash_in_mid_turn_tells_the_exit_code_and_keeps_what_was_said
row 12: a flood of 100,000 updates and a handler that takes half a second
    host/test_misbehaviour: test_a_flood_and_a_viewer_that_stands_still_cost_neither_tasks_nor_memory
    agents/test_rpc: test_nothing_more_is_read_while_there_is_no_room
    proc/test_child: test_a_flood_with_a_slow_reader_stays_within_the_buffer
    store/test_failing_disk: test_a_full_disk_pauses_the_agent_and_loses_nothing
row 13: a grandchild that stays when the client has gone
    host/test_end: test_a_tree_that_ignores_signals_is_gone_after_dispose
row 14: an agent that ignores TERM
    host/test_end: test_a_tree_that_ignores_signals_is_gone_after_dispose
    host/test_misbehaviour: test_a_deaf_agent_is_gone_soon_after_its_grace

complaint 1: orphans, because only the wrapper that starts the agent is killed
    host/test_misbehaviour: test_an_agent_behind_a_wrapper_is_gone_after_dispose
    host/test_misbehaviour: test_an_agent_whose_wrapper_was_killed_does_not_live_on
    proc/test_registry: test_the_tree_of_an_owner_killed_without_warning_is_reaped
    host/test_kill: test_a_host_killed_in_mid_turn_leaves_a_whole_log_no_process_and_sessions_to_go_on_with
complaint 2: words out of order
    host/test_order: test_updates_requests_and_answers_keep_their_order
    agents/test_rpc: test_everything_is_handled_in_the_order_it_came
complaint 3: a prompt that returns before its last updates, and updates after its end
    host/test_order: test_prompt_returns_only_when_its_last_update_is_on_the_disk
    host/test_order: test_what_follows_the_answer_is_recorded_after_the_end_of_the_turn
    host/test_order: test_a_late_update_is_kept_after_the_turn
complaint 4: updates before the answer to session/new
    host/test_order: test_updates_before_the_session_is_known_are_kept
    host/test_order: test_updates_of_sessions_that_nobody_opens_are_dropped_beyond_the_bound
complaint 5: what is no JSON on stdout
    host/test_stray: test_a_line_that_says_nothing_is_reported
    host/test_stray: test_a_torn_line_costs_itself_and_no_more
    host/test_misbehaviour: test_a_banner_before_the_handshake_is_reported_and_skipped
complaint 6: lines beyond 64 KiB, and large images
    host/test_stray: test_a_line_of_ten_megabytes_arrives
    host/test_misbehaviour: test_a_large_image_reaches_the_agent_whole
complaint 7: a stderr that nobody reads
    host/test_end: test_much_stderr_neither_blocks_nor_fills_memory
    host/test_misbehaviour: test_much_stderr_before_the_handshake_does_not_block_it
complaint 8: a crash in mid-prompt that hangs the client, or says no reason
    host/test_end: test_a_crash_in_mid_turn_tells_code_and_last_words
    host/test_end: test_a_signal_is_named
    host/test_end: test_an_agent_that_closes_its_output_is_stopped_at_once_and_the_session_says_so
    host/test_session: test_a_prompt_to_a_dead_agent_says_how_it_ended
    host/test_takeup: test_a_recovery_that_crashes_is_followed_by_another
    agents/test_sdks: test_a_crash_in_mid_turn_is_recovered_from_by_a_load
    agents/test_claude_agent_acp_sessions: test_a_session_killed_in_mid_turn_tells_its_end_and_goes_on
complaint 9: a hard limit on prompts instead of one on idleness; slow tools that look idle
    host/test_session: test_an_idle_agent_is_cancelled_and_the_client_told
    host/test_session: test_a_sign_of_life_starts_the_idle_time_anew
    host/test_session: test_waiting_for_a_person_is_not_idleness
    host/test_misbehaviour: test_a_tool_at_work_is_not_idleness
complaint 10: a slow start that needs its own limit, and whose stderr must be seen
    host/test_end: test_an_agent_that_never_answers_initialize_is_stopped_and_its_stderr_shown
    host/test_end: test_an_agent_that_dies_at_the_start_says_why
    host/test_misbehaviour: test_a_start_may_take_longer_than_a_turn_may_be_idle
complaint 11: permissions that hang after a cancel, outlive their turn, or have nobody to answer them
    host/test_permissions: test_a_cancelled_turn_cancels_its_permission
    host/test_permissions: test_a_permission_asked_after_the_cancel_is_cancelled_at_once
    host/test_permissions: test_an_answer_after_the_turn_is_not_sent
    host/test_permissions: test_silence_is_a_refusal
complaint 12: cancels that are ignored, wedge the session, or hit the next turn
    host/test_session: test_an_agent_that_ignores_a_cancel_is_stopped_after_the_grace
    host/test_session: test_a_cancel_between_the_answer_and_the_return_of_prompt_is_not_sent
    host/test_session: test_a_cancel_without_a_turn_is_never_sent
    host/test_misbehaviour: test_a_cancel_that_crosses_the_answer_does_not_hit_the_next_turn
    agents/test_sdks: test_a_cancelled_turn_ends_and_the_next_one_is_not_hit
complaint 13: several viewers, and those that come back
    host/test_misbehaviour: test_viewers_that_come_late_or_come_back_see_the_same_bytes
    store/test_suffix: test_subscribing_at_any_point_gives_the_exact_suffix
complaint 14: replays shown as new output, lost history
    store/test_log: test_a_replaced_history_goes_on_counting_and_moves_the_floor
    store/test_log: test_a_replaced_history_survives_a_restart
    host/test_takeup: test_an_agent_that_dies_while_it_replays_leaves_the_history_as_it_was
    host/test_takeup: test_a_resume_keeps_state_before_its_answer_and_all_that_follows_in_order
    agents/test_sdks: test_the_replay_of_a_load_is_handled_before_its_answer
    agents/test_sdks: test_a_load_returns_when_its_whole_replay_is_on_the_disk
    agents/test_claude_agent_acp_sessions: test_a_loaded_session_has_its_history_told_again_and_goes_on
    agents/test_claude_agent_acp_sessions: test_a_resumed_session_keeps_its_history_and_goes_on
    host/test_kill: test_a_host_killed_in_mid_turn_leaves_a_whole_log_no_process_and_sessions_to_go_on_with
complaint 18: tool calls that are updated before they start, start twice, or never start
    host/test_misbehaviour: test_tool_calls_in_any_order_are_kept_and_told_apart
    host/test_misbehaviour: test_a_tool_call_that_never_started_can_be_asked_about
"""

import asyncio
import importlib
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from tests.agents.bytes_agent import scripted
from tests.host.rig import Hand, Rig, events, go, of_type, play, rig, until, until_type

from legation.host.options import Limits
from legation.host.session import Session
from legation.host.turn import CANCEL_GRACE, PromptResult
from legation.proc import Command
from legation.proc.child import TERM_GRACE
from legation.proc.tree import process
from legation.store.sqlite import SqliteBackend
from legation.testing.clock import FakeClock
from legation.wire.acp.updates import Image
from legation.wire.events import Event

pytestmark = pytest.mark.heavy  # a process or more for each test


ROWS = 14
COMPLAINTS = (*range(1, 15), 18)
FLOOD = 100_000
SIZE = 2500  # bytes of an update: in all, four times what may wait for the disk
TASKS_MORE = 50  # than before the flood; a client with a task for each update has thousands
MEGABYTES_MORE = 150  # than before it; the updates are 250
STOP_GRACE = 0.3
STOP_SLACK = 5.0  # seconds beyond both graces: the kernel's time, on a busy machine
DEATH_LIMIT = 10.0  # seconds for a process that was killed to be gone


def listed() -> dict[str, list[tuple[str, str]]]:
    """The list above: by its head, the module and the test of each line below."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in (__doc__ or "").splitlines():
        if head := re.match(r"((?:row|complaint) \d+): \S", line):
            tests = found.setdefault(head[1], [])
        elif test := re.fullmatch(r"    (\w+/\w+): (test_\w+)", line):
            tests.append((f"tests.{test[1].replace('/', '.')}", test[2]))
    return found


def test_every_row_and_complaint_is_listed_with_a_test_that_exists() -> None:
    found = listed()
    heads = [f"row {number}" for number in range(1, ROWS + 1)]
    assert list(found) == heads + [f"complaint {number}" for number in COMPLAINTS]
    for head, tests in found.items():
        assert tests, head
        for module, name in tests:
            assert callable(getattr(importlib.import_module(module), name, None)), f"{head}: {module}.{name}"


def alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and not found.dead


def text(event: Event) -> str:
    return str(json.loads(event.payload)["content"]["text"])


async def updates(session: Session) -> list[dict[str, object]]:
    """What the agent sent, without what the host says itself."""
    own = ("session-status", "prompt-started", "turn-state", "prompt-finished")
    return [json.loads(event.payload) for event in await events(session) if event.type not in own]


async def send(made: Rig, *sent: dict[str, object]) -> Session:
    source = f"""
hello(); session(); prompt = prompted()
for each in {list(sent)!r}: send(method="session/update", params={{"sessionId": "s1", "update": each}})
done(prompt); stay()
"""
    session = await made.script(source)
    await go(session)
    return session


# Rows.


async def test_a_slow_viewer_sees_every_update_in_order(tmp_path: Path) -> None:
    """Row 1."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        seen: list[int] = []

        async def view() -> None:
            async for event in session.stream.subscribe():
                await asyncio.sleep(0.001 if event.seq % 7 == 0 else 0)
                seen.append(event.seq)
                if event.type == "prompt-finished":
                    return

        viewing = asyncio.create_task(view())
        await play(session, "flood 2000")
        await viewing
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > 2000


async def test_updates_and_contents_of_no_known_kind_are_kept_as_they_are(tmp_path: Path) -> None:
    """Row 6. The host has advertised neither notices nor compaction."""
    known: list[dict[str, object]] = [
        {"sessionUpdate": "notice", "severity": "dreadful", "title": "t"},
        {"sessionUpdate": "compaction_update", "compactionId": "c", "status": "odd"},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "_hologram", "depth": 3}},
        {"sessionUpdate": "agent_message_chunk", "content": "no object"},
        {"sessionUpdate": "agent_message_chunk"},
    ]
    unknown: list[dict[str, object]] = [
        {"sessionUpdate": "_vendor/thing", "a": [1, {"b": None}]},
        {"sessionUpdate": 5},
        {"no": "tag"},
    ]
    async with rig(tmp_path) as made:
        session = await send(made, *known, *unknown)
        assert await updates(session) == known + unknown
        assert [
            json.loads(event.payload) for event in await of_type(session, "unrecognized-update")
        ] == unknown
        assert made.reported == []


async def test_a_tool_call_of_no_known_kind_is_kept_and_can_be_asked_about(tmp_path: Path) -> None:
    """Row 7."""
    source = """
hello(); session(); prompt = prompted()
call = {"sessionUpdate": "tool_call", "toolCallId": "call1", "title": "t", "kind": "teleport", "status": "odd"}
send(method="session/update", params={"sessionId": "s1", "update": call})
permission(1, kind="teleport", status="odd")
update(answer(1)["result"]["outcome"]["optionId"]); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        (call,) = [json.loads(event.payload) for event in await of_type(session, "tool-call")]
        assert (call["kind"], call["status"]) == ("teleport", "odd")
        assert [text(event) for event in await of_type(session, "agent-message-chunk")] == ["allow_once"]


async def test_meta_never_takes_the_place_of_the_message(tmp_path: Path) -> None:
    """Row 8. Of an update, of a question, and of a file that is read."""
    source = """
meta = {"sessionId": "s2", "session_id": "s2", "path": "/etc/passwd", "options": [], "toolCall": {"toolCallId": "fake"},
        "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "FAKE"}}}
hello(); session("s1"); session("s2"); prompt = prompted()
true = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "true"}, "_meta": meta}
send(method="session/update", params={"_meta": meta, "sessionId": "s1", "update": true})
send(method="session/update", params={"sessionId": "s1", "update": true, "_meta": meta})
params = {"_meta": meta, "sessionId": "s1", "toolCall": {"toolCallId": "call1", "title": "true"}, "options": OPTIONS}
send(id=1, method="session/request_permission", params=params)
update(answer(1)["result"]["outcome"]["optionId"])
send(id=2, method="fs/read_text_file", params={"_meta": meta, "sessionId": "s1", "path": PATH})
update(answer(2)["result"]["content"])
done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        (made.work / "a.txt").write_text("mine")
        session = await made.script(source.replace("PATH", repr(str(made.work / "a.txt"))))
        other = await made.open_another(session)
        await go(session)
        said = [text(event) for event in await of_type(session, "agent-message-chunk")]
        assert said == ["true", "true", "allow_once", "mine"]
        (asked,) = [json.loads(event.payload) for event in await of_type(session, "permission-asked")]
        assert (asked["title"], asked["toolCallId"]) == ("true", "call1")
        assert [event.type for event in await events(other)] == ["session-status"]


@pytest.mark.heavy
async def test_a_flood_and_a_viewer_that_stands_still_cost_neither_tasks_nor_memory(tmp_path: Path) -> None:
    """Row 12."""
    async with rig(tmp_path, backend=SqliteBackend(tmp_path / "log.db")) as made:
        session = await made.rehearse()
        go_on = asyncio.Event()
        viewing = asyncio.create_task(_stand_still(session, go_on))
        await play(session, "flood 1000")  # what a first turn costs is not the flood's
        tasks, megabytes = most_tasks, most_megabytes = len(asyncio.all_tasks()), _megabytes()
        prompting = asyncio.create_task(play(session, f"flood {FLOOD} {SIZE}"))
        while not prompting.done():
            await asyncio.wait({prompting}, timeout=0.01)
            most_tasks = max(most_tasks, len(asyncio.all_tasks()))
            most_megabytes = max(most_megabytes, _megabytes())
        assert (await prompting).stop_reason == "end_turn"
        assert most_tasks - tasks < TASKS_MORE
        assert most_megabytes - megabytes < MEGABYTES_MORE
        assert not viewing.done()
        go_on.set()
        seen = await viewing
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > FLOOD + 1000


async def _stand_still(session: Session, go_on: asyncio.Event) -> list[int]:
    """A viewer in the middle of its first update until it may go on, then to the end of the second turn."""
    seen: list[int] = []
    turns = 0
    async for event in session.stream.subscribe():
        await go_on.wait()
        seen.append(event.seq)
        turns += event.type == "prompt-finished"
        if turns == 2:
            break
    return seen


def _megabytes() -> float:
    """What this process has in memory now; its peak may be that of another test."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.heavy
async def test_a_deaf_agent_is_gone_soon_after_its_grace(tmp_path: Path) -> None:
    """Row 14. TERM and the end of its input are nothing to it."""
    async with rig(tmp_path, limits=Limits()) as made:
        session = await made.rehearse()
        await play(session, "ignore-signals", "ignore-stdin-eof")
        before = time.monotonic()
        found = await session.agent.stop(STOP_GRACE)
        assert found.signal == 9
        assert time.monotonic() - before < STOP_GRACE + TERM_GRACE + STOP_SLACK


# Complaints.


def wrapped(source: str, place: Path) -> Command:
    """Like npx: a program that starts the agent, lends it its pipes, waits, and hands on no signal."""
    plain = scripted(source, place)
    wrapper = """
import os, sys
if os.fork() == 0:
    os.setsid()  # as a shell with job control does; a signal to the wrapper's group does not reach it
    os.execv(sys.argv[1], sys.argv[1:])
print(os.getpid(), file=open("wrapper", "w"), flush=True)
os.wait()
"""
    argv = (sys.executable, "-I", "-S", "-c", wrapper, *plain.argv)
    return Command(argv, plain.cwd, plain.env, "wrapped")


ANNOUNCED = "hello(); session(); prompt = prompted(); update(str(os.getpid()))\n"


async def test_an_agent_behind_a_wrapper_is_gone_after_dispose(tmp_path: Path) -> None:
    """Complaint 1."""
    deaf = "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
    async with rig(tmp_path, limits=Limits()) as made:
        source = deaf + ANNOUNCED + "done(prompt)\nwhile True: signal.pause()"
        session = await made.run(wrapped(source, tmp_path))
        await go(session)
        (said,) = await of_type(session, "agent-message-chunk")
        agent = int(text(said))
        wrapper = session.agent.processes[0]
        assert agent != wrapper
        assert alive(agent)
        await made.host.dispose()
        assert not alive(agent)
        assert not alive(wrapper)


async def test_an_agent_whose_wrapper_was_killed_does_not_live_on(tmp_path: Path) -> None:
    """Complaint 1. It could even go on talking; but nobody could stop it any more."""
    async with rig(tmp_path, limits=Limits()) as made:
        source = ANNOUNCED + "os.kill(int(open('wrapper').read()), 9)\nwhile True: signal.pause()"
        session = await made.run(wrapped(source, tmp_path))
        with pytest.raises(Exception, match="SIGKILL"):
            await go(session)
        await until_type(session, "agent-exited")
        (said,) = await of_type(session, "agent-message-chunk")
        async with asyncio.timeout(DEATH_LIMIT):
            while alive(int(text(said))):
                await asyncio.sleep(0.005)


async def test_a_banner_before_the_handshake_is_reported_and_skipped(tmp_path: Path) -> None:
    """Complaint 5. What a package runner says on stdout when it installs."""
    source = """
raw(b"Need to install the following packages:\\nagent@1.0.0\\n\\n\\x1b[32mok\\x1b[0m (y) \\n")
hello(); session(); raw(b"Debug: session made\\n"); done(prompted()); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert (await go(session)).stop_reason == "end_turn"
        assert [each.code for each in made.reported] == ["agent/stray-line"] * 4


async def test_a_large_image_reaches_the_agent_whole(tmp_path: Path) -> None:
    """Complaint 6. And comes back, as large."""
    source = """
hello(); session()
while (message := read()).get("method") != "session/prompt": pass
image = message["params"]["prompt"][0]
chunk = {"sessionUpdate": "agent_message_chunk", "content": image}
send(method="session/update", params={"sessionId": "s1", "update": chunk}); done(message["id"]); stay()
"""
    data = "iVBORw0K" * 500_000
    async with rig(tmp_path) as made:
        session = await made.script(source)
        result: PromptResult = await session.prompt((Image(data=data, mime_type="image/png"),))
        assert result.stop_reason == "end_turn"
        (echo,) = await of_type(session, "agent-message-chunk")
        assert json.loads(echo.payload)["content"]["data"] == data


async def test_much_stderr_before_the_handshake_does_not_block_it(tmp_path: Path) -> None:
    """Complaint 7."""
    source = "for _ in range(400): os.write(2, b'warning: old\\n' * 100)\nhello(); session(); done(prompted()); stay()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert (await go(session)).stop_reason == "end_turn"


async def test_a_tool_at_work_is_not_idleness(tmp_path: Path) -> None:
    """Complaint 9. A build of an hour says nothing for an hour, and its agent has said that it runs."""
    clock = FakeClock()
    os.mkfifo(tmp_path / "go")
    source = """
hello(); session(); prompt = prompted()
call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "make", "status": "in_progress"}
send(method="session/update", params={"sessionId": "s1", "update": call})
os.read(os.open("go", os.O_RDONLY), 1)
done(prompt); stay()
"""
    async with rig(tmp_path, clock=clock, limits=Limits(idle=100.0)) as made:
        session = await made.script(source)
        prompting = asyncio.create_task(go(session))
        await until_type(session, "tool-call")
        await clock.until_sleeping()
        clock.advance(101.0)
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.to_thread((tmp_path / "go").write_text, "x")
        assert (await prompting).stop_reason == "end_turn"


async def test_a_start_may_take_longer_than_a_turn_may_be_idle(tmp_path: Path) -> None:
    """Complaint 10. Each has a limit of its own; neither is the other's."""
    source = "import time; time.sleep(0.5); hello(); session(); stay()"
    async with rig(tmp_path, limits=Limits(start=30.0, idle=0.2, permission=0.2)) as made:
        session = await made.script(source)
        assert session.agent.version == 1


async def test_a_cancel_that_crosses_the_answer_does_not_hit_the_next_turn(tmp_path: Path) -> None:
    """Complaint 12. The agent ends its turn before it reads the cancel; nor is it stopped for not obeying."""
    clock = FakeClock()
    os.mkfifo(tmp_path / "go")
    source = """
gate = os.open("go", os.O_RDWR)  # read-only, it would wait for a writer that may have gone already
hello(); session(); prompt = prompted(); update("one"); os.read(gate, 1); done(prompt)
crossed, following = read(), read()
update(crossed["method"] + " " + following["method"]); os.read(gate, 1)
done(following["id"]); stay()
"""
    async with rig(tmp_path, clock=clock, limits=Limits(idle=1000.0)) as made:
        session = await made.script(source)
        prompting = asyncio.create_task(go(session))
        await until_type(session, "agent-message-chunk")
        (tmp_path / "go").write_text("x")
        await session.cancel()
        assert (await prompting).stop_reason == "end_turn"  # the agent's own word
        prompting = asyncio.create_task(go(session))
        await until(session, lambda event: b"session/cancel session/prompt" in event.raw)
        clock.advance(CANCEL_GRACE + 1)
        (tmp_path / "go").write_text("x")
        assert (await prompting).stop_reason == "end_turn"
        assert made.reported == []


async def test_viewers_that_come_late_or_come_back_see_the_same_bytes(tmp_path: Path) -> None:
    """Complaint 13. One from the start, one that comes in mid-turn, one that comes back with its last number."""
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        first = asyncio.create_task(_view(session, 0))
        prompting = asyncio.create_task(play(session, "flood 500", "ask something", "flood 500"))
        await hand.until_asked()
        asked = await until_type(session, "permission-asked")
        late = asyncio.create_task(_view(session, 0))
        back = asyncio.create_task(_view(session, asked.seq))
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        whole = await first
        assert await late == whole
        assert await back == whole[asked.seq :]
        assert [event.seq for event in whole] == list(range(1, len(whole) + 1))


async def _view(session: Session, after: int) -> list[Event]:
    seen: list[Event] = []
    async for event in session.stream.subscribe(after):
        seen.append(event)
        if event.type == "prompt-finished":
            break
    return seen


async def test_tool_calls_in_any_order_are_kept_and_told_apart(tmp_path: Path) -> None:
    """Complaint 18."""
    start = {"sessionUpdate": "tool_call", "toolCallId": "a", "title": "A", "kind": "execute"}
    sent: list[dict[str, object]] = [
        {"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed"},
        {**start, "status": "pending"},
        {**start, "status": "pending"},
        {**start, "toolCallId": "A", "title": "another"},
        {"sessionUpdate": "tool_call_update", "toolCallId": "never", "status": "failed", "content": None},
        {**start, "title": "A again, after its end", "status": "in_progress"},
    ]
    async with rig(tmp_path) as made:
        session = await send(made, *sent)
        assert await updates(session) == sent
        assert made.reported == []


async def test_a_tool_call_that_never_started_can_be_asked_about(tmp_path: Path) -> None:
    """Complaint 18. So can one that has ended, and is then not taken for the one before."""
    source = """
hello(); session(); prompt = prompted()
permission(1, title="one", rawInput={"command": "rm one"}); answer(1)
over = {"sessionUpdate": "tool_call_update", "toolCallId": "call1", "status": "completed"}
send(method="session/update", params={"sessionId": "s1", "update": over})
permission(1, title="two"); answer(1)
done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        asked = [json.loads(event.payload) for event in await of_type(session, "permission-asked")]
        assert [each["title"] for each in asked] == ["one", "two"]
        assert asked[0]["action"]["command"] == "rm one"
        assert "command" not in asked[1]["action"]
