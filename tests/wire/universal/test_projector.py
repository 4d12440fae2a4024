import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.wire.samples import UPDATES, tagged
from tests.wire.universal.laws import FACTS, check, events_of, project, text_of
from tests.wire.universal.logs import ACTIVE, Entry, asked, block, call, change, chunk, log, output, turn

from legation.wire.acp.rpc import RpcError
from legation.wire.action import Action
from legation.wire.event_types import (
    AgentExited,
    Diagnostic,
    DiagnosticCode,
    PermissionAnswered,
    PromptFinished,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    TurnState,
    UnaskedEffect,
    UnaskingMode,
)
from legation.wire.events import Draft
from legation.wire.universal import text_items
from legation.wire.universal.output import json_bytes
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import floor
from legation.wire.universal.text_items import MOST_TEXT

Found = list[dict[str, Any]]
MOST_PARTS = MOST_TEXT // 1024  # of a message that are no text


def types(found: Found) -> list[str]:
    return [event["type"] for event in found]


def only(found: Found, type_: str) -> dict[str, Any]:
    (event,) = (each for each in found if each["type"] == type_)
    data: dict[str, Any] = event["data"]
    return data


def completed(found: Found, *kinds: str) -> Found:
    items = [each["data"]["item"] for each in found if each["type"] == "item.completed"]
    return [item for item in items if not kinds or item["kind"] in kinds]


def test_a_turn_of_one_message_has_the_shape_of_the_original() -> None:
    found = check(log(ACTIVE, *turn(chunk("Hel", "m1"), chunk("lo", "m1"))))
    assert types(found) == [
        *("session.started", "turn.started", "item.started", "item.completed"),
        *("item.started", "item.delta", "item.delta", "item.completed", "turn.ended"),
    ]
    assert found[0]["data"] == {
        "metadata": {
            "agent": "rehearsal",
            "agentMode": "build",
            "model": None,
            "permissionMode": "default",
            "variant": None,
        }
    }
    user, agent = completed(found)
    assert (user["role"], user["content"]) == ("user", [{"type": "text", "text": "do it"}])
    assert agent == {
        "item_id": "itm_2",
        "native_item_id": "m1",
        "parent_id": None,
        "kind": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "status": "completed",
    }
    assert found[-1]["data"]["metadata"]["stopReason"] == "end_turn"
    assert (found[0]["session_id"], found[0]["native_session_id"]) == ("mine", "native-1")
    assert found[0]["time"] == "2026-09-21T14:13:20.124000Z"


def test_a_message_ends_where_another_speaks_and_goes_on_over_what_is_no_speech() -> None:
    found = check(
        log(
            chunk("a", "m1"),
            tagged("usage_update"),
            chunk("b", "m1"),
            chunk("c", "m2"),
            chunk("d", kind="agent_thought"),
            chunk("e"),
            chunk("f", kind="user_message"),
            tagged("plan"),
            chunk("g", kind="user_message"),
            call(),
        )
    )
    spoken = completed(found, "message")
    assert [(item["role"], item["content"][0]["type"]) for item in spoken] == [
        *(("assistant", "text"), ("assistant", "text"), ("assistant", "reasoning")),
        *(("assistant", "text"), ("user", "text"), ("user", "text")),
    ]
    assert [item["content"][0]["text"] for item in spoken] == ["ab", "c", "d", "e", "f", "g"]


def test_a_thought_is_known_as_one_from_its_start() -> None:
    (started,) = (
        each["data"]["item"]
        for each in events_of(log(chunk("hm", kind="agent_thought")))
        if each["type"] == "item.started"
    )
    assert started["content"] == [{"type": "reasoning", "text": "", "visibility": "public"}]


def test_content_that_is_no_text_stands_in_its_place() -> None:
    found = check(
        log(
            chunk("see "),
            block(type="image", data="aGk=", mimeType="image/png"),
            block(type="image", data="", mimeType="image/png", uri="https://example.org/a.png"),
            block(type="resource_link", name="n", uri="file:///a%20b"),
            block(type="resource_link", name="n", uri="https://example.org/"),
            block(type="audio", data="aGk=", mimeType="audio/wav"),
            block(type="hologram", depth=3),
            chunk("there"),
            *turn(),
        )
    )
    message = completed(found, "message")[0]
    assert message["content"] == [
        {"type": "text", "text": "see "},
        {"type": "image", "path": "data:image/png;base64,aGk=", "mime": "image/png"},
        {"type": "image", "path": "https://example.org/a.png", "mime": "image/png"},
        {"type": "file_ref", "path": "/a b", "action": "read", "diff": None},
        {"type": "json", "json": {"type": "resource_link", "name": "n", "uri": "https://example.org/"}},
        {"type": "json", "json": {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}},
        {"type": "json", "json": {"type": "hologram", "depth": 3}},
        {"type": "text", "text": "there"},
    ]


def test_a_tool_call_stands_when_it_runs_and_has_a_result_when_it_ends() -> None:
    diff = {"type": "diff", "path": "/w/a", "oldText": "a\n", "newText": "b\n"}
    new = {"type": "diff", "path": "/w/b", "newText": "b"}
    found = check(
        log(
            call(kind="edit", name="mcp__fs__write", rawInput={"path": "a"}, status="pending"),
            change(status="in_progress"),
            change(
                status="completed",
                content=[*output("done"), diff, new, {"type": "terminal", "terminalId": "t"}],
                locations=[{"path": "/w/a"}, {"path": "/w/c", "line": 3}],
            ),
        )
    )
    assert types(found)[1:] == [
        "item.started",
        "item.completed",
        "item.started",
        "item.delta",
        "item.completed",
    ]
    tool, result = completed(found)
    assert tool["content"] == [
        {"type": "tool_call", "name": "fs.write", "arguments": '{"path":"a"}', "call_id": "c1"},
        {"type": "status", "label": "Do it", "detail": "edit"},
    ]
    assert (tool["kind"], tool["role"], tool["native_item_id"]) == ("tool_call", "assistant", "c1")
    assert (result["kind"], result["role"], result["parent_id"]) == ("tool_result", "tool", tool["item_id"])
    assert result["content"] == [
        {"type": "tool_result", "call_id": "c1", "output": "done"},
        {
            "type": "file_ref",
            "path": "/w/a",
            "action": "patch",
            "diff": "--- /w/a\n+++ /w/a\n@@ -1,1 +1,1 @@\n-a\n+b\n",
        },
        {
            "type": "file_ref",
            "path": "/w/b",
            "action": "write",
            "diff": "--- /dev/null\n+++ /w/b\n@@ -0,0 +1,1 @@\n+b\n\\ No newline at end of file\n",
        },
        {"type": "json", "json": {"type": "terminal", "terminalId": "t"}},
        {"type": "file_ref", "path": "/w/c", "action": "write", "diff": None},
    ]


def test_an_update_of_an_unknown_call_is_a_call() -> None:
    found = check(log(change(status="failed", rawOutput={"exit": 1})))
    tool, result = completed(found)
    assert tool["content"] == [{"type": "tool_call", "name": "other", "arguments": "{}", "call_id": "c1"}]
    assert (tool["status"], result["status"]) == ("completed", "failed")
    assert result["content"][0]["output"] == '{"exit":1}'


def test_output_that_grows_is_told_by_deltas_and_output_that_is_replaced_is_another_result() -> None:
    found = check(
        log(
            call(status="in_progress"),
            change(content=output("one")),
            change(content=output("one", "two")),
            change(content=output("three")),
            change(status="completed", content=output("three, four")),
        )
    )
    deltas = [each["data"]["delta"] for each in found if each["type"] == "item.delta"]
    assert deltas == ["one", "\ntwo", "three", ", four"]
    first, second = completed(found, "tool_result")
    assert first["content"] == [{"type": "tool_result", "call_id": "c1", "output": "one\ntwo"}]
    assert second["content"] == [{"type": "tool_result", "call_id": "c1", "output": "three, four"}]


def test_what_a_call_shows_before_it_runs_is_no_output() -> None:
    shown = change(content=output("Run make"))
    found = check(log(call(), shown, change(status="completed", content=output("made"))))
    (item,) = completed(found, "status")
    assert item["content"][1]["json"] == shown
    (result,) = completed(found, "tool_result")
    assert result["content"] == [{"type": "tool_result", "call_id": "c1", "output": "made"}]


def test_what_else_is_said_of_a_call_is_told_as_it_came() -> None:
    later = change(status="completed", title="Again")
    found = check(log(call(), change(rawInput={"a": 1}), change(status="completed"), later))
    first, last = completed(found, "status")
    assert first["content"] == [
        {"type": "status", "label": "Do it", "detail": None},
        {"type": "json", "json": change(rawInput={"a": 1})},
    ]
    assert last["content"][1]["json"] == later
    tool, _ = completed(found, "tool_call", "tool_result")
    assert last["parent_id"] == first["parent_id"] == tool["item_id"]
    assert json.loads(tool["content"][0]["arguments"]) == {"a": 1}


def test_a_call_without_an_end_fails_with_its_turn() -> None:
    half = call("c2", status="in_progress", content=output("half"))
    silent = call("c3", status="in_progress")
    found = check(log(*turn(call("c1"), half, silent, chunk("bye"), reason="cancelled")))
    calls = completed(found, "tool_call", "tool_result")
    assert [(item["native_item_id"], item["kind"], item["status"]) for item in calls] == [
        *(("c2", "tool_call", "completed"), ("c3", "tool_call", "completed")),
        *(("c1", "tool_call", "failed"), ("c2", "tool_result", "failed"), ("c3", "tool_result", "failed")),
    ]
    assert types(found)[-1] == "turn.ended"


def test_a_call_is_whole_before_somebody_is_asked_about_it() -> None:
    found = check(log(call(), change(rawInput={"x": 1}), chunk("May I?"), asked()))
    assert types(found)[-3:] == ["item.completed", "item.completed", "permission.requested"]
    assert completed(found, "tool_call")[0]["content"][0]["arguments"] == '{"x":1}'


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"outcome": "approved", "by": "user:1", "option_id": "allow_once"}, "accept"),
        ({"outcome": "approved", "by": "grant:gra_1", "option_id": "allow_once"}, "accept_for_session"),
        ({"outcome": "approved", "by": "user:1", "option_id": "allow_always"}, "accept_for_session"),
        ({"outcome": "denied", "by": "policy", "option_id": "reject_once", "reason": "no"}, "reject"),
        ({"outcome": "expired", "by": "timeout"}, "reject"),
        ({"outcome": "superseded", "by": "agent"}, "reject"),
        ({"outcome": "cancelled", "by": "client"}, "reject"),
    ],
)
def test_a_permission_keeps_its_id_and_says_how_it_was_answered(answer: dict[str, Any], status: str) -> None:
    found = check(log(asked(), PermissionAnswered(id="apr_1", **answer)))
    requested, resolved = only(found, "permission.requested"), only(found, "permission.resolved")
    assert (requested["permission_id"], requested["action"]) == ("apr_1", "Bash")
    assert requested["metadata"]["action"]["command"] == "make"
    assert (resolved["permission_id"], resolved["action"], resolved["status"]) == ("apr_1", "Bash", status)
    assert resolved["metadata"]["by"] == answer["by"]


COLOUR = {"type": "string", "title": "Colour", "enum": ["red", "blue"], "enumNames": ["Red", "Blue"]}


@pytest.mark.parametrize(
    ("fields", "prompt", "options", "content", "response"),
    [
        ({"colour": COLOUR}, "Choose", ["Red", "Blue"], {"colour": "red"}, "red"),
        ({"sure": {"type": "boolean"}}, "Choose", ["Yes", "No"], {"sure": True}, "true"),
        (
            {"c": {"type": "array", "items": {"anyOf": [{"const": 1, "title": "One"}]}}},
            "Choose",
            ["One"],
            {"c": ["a", "b"]},
            "a, b",
        ),
        (
            {"colour": COLOUR, "age": {"type": "integer", "description": "in years"}},
            "Choose\n- Colour (Red | Blue)\n- age (integer): in years",
            [],
            {"colour": "red", "age": 3},
            '{"colour":"red","age":3}',
        ),
        ({}, "Choose", [], None, None),
    ],
)
def test_a_form_is_a_prompt_with_options(
    fields: dict[str, Any],
    prompt: str,
    options: list[str],
    content: dict[str, Any] | None,
    response: str | None,
) -> None:
    question = QuestionAsked(
        id="qst_1", message="Choose", mode="form", requested_schema={"type": "object", "properties": fields}
    )
    found = check(
        log(question, QuestionAnswered(id="qst_1", outcome="accepted", by="handler", content=content))
    )
    told = {"question_id": "qst_1", "prompt": prompt, "options": options}
    assert only(found, "question.requested") == {**told, "response": None, "status": "requested"}
    assert only(found, "question.resolved") == {**told, "response": response, "status": "answered"}


def test_a_page_is_named_and_a_question_without_an_answer_is_rejected() -> None:
    question = QuestionAsked(id="q", message="Sign in", mode="url", url="https://example.org/")
    found = check(log(question, QuestionAnswered(id="q", outcome="expired", by="timeout")))
    assert only(found, "question.requested")["prompt"] == "Sign in\nhttps://example.org/"
    assert only(found, "question.resolved")["status"] == "rejected"


def test_a_prompt_that_failed_is_an_error_before_the_end_of_its_turn() -> None:
    started, running, *_ = turn()
    error = RpcError(-32603, "overloaded", {"retry": 3})
    found = check(log(started, running, PromptFinished(turn="trn_1", stop_reason="end_turn", error=error)))
    assert types(found)[-2:] == ["error", "turn.ended"]
    assert only(found, "error") == {
        "message": "overloaded",
        "code": "prompt_failed",
        "details": {"code": -32603, "message": "overloaded", "data": {"retry": 3}},
    }


def test_what_was_done_unasked_is_an_error_and_so_is_a_mode_that_stays_unasking() -> None:
    effect = UnaskedEffect(title="Write a.py", action=Action(agent="a", tool="edit"), rule="p:edits")
    found = check(log(ACTIVE, effect, UnaskingMode(mode="yolo", found="opened", reason="it has no other")))
    errors = [event["data"] for event in found if event["type"] == "error"]
    assert [each["code"] for each in errors] == ["unasked_effect", "unasking_mode"]
    assert errors[0]["message"] == "Write a.py: done, and nobody had allowed it"
    assert errors[0]["details"]["rule"] == "p:edits"
    put = check(log(ACTIVE, UnaskingMode(mode="auto", found="opened", put_into="default")))
    assert "error" not in types(put)
    (item,) = completed(put, "status")
    assert item["content"][0]["detail"] == "default: in auto it would not ask"


def test_a_turn_that_no_prompt_began_is_told_by_its_state() -> None:
    found = check(
        log(
            *(TurnState(turn="t", state=state) for state in ("accepted", "running")),
            chunk("by myself"),
            TurnState(turn="t", state="idle", reason="end_turn"),
            TurnState(turn="t", state="running"),
        )
    )
    assert types(found) == [
        *("session.started", "turn.started", "item.started", "item.delta", "item.completed", "turn.ended"),
    ]


def test_a_prompt_ends_a_turn_that_was_left_open() -> None:
    found = check(log(*turn(chunk("a"))[:3], *turn(name="trn_2")))
    ended = [each["data"]["turn_id"] for each in found if each["type"] == "turn.ended"]
    assert ended == ["trn_1", "trn_2"]


CRASH = AgentExited(code=3, stderr_tail="one\ntwo")


@pytest.mark.parametrize(
    ("entries", "ended"),
    [
        (
            (CRASH, SessionStatus(status="disconnected", reason="crashed: exit code 3")),
            {
                "reason": "error",
                "terminated_by": "agent",
                "message": "the agent crashed: exit code 3",
                "exit_code": 3,
                "stderr": {"truncated": False, "head": "one\ntwo", "total_lines": 2},
            },
        ),
        (
            (
                AgentExited(signal=9, stderr_tail="\n".join(map(str, range(99)))),
                SessionStatus(status="disconnected", reason="crashed: signal 9"),
            ),
            {
                "reason": "error",
                "terminated_by": "agent",
                "message": "the agent crashed: signal 9",
                "stderr": {"truncated": True, "tail": "\n".join(map(str, range(49, 99)))},
            },
        ),
        (
            (AgentExited(code=0), SessionStatus(status="disconnected", reason="ended: exit code 0")),
            {"reason": "completed", "terminated_by": "agent"},
        ),
        ((SessionStatus(status="closed"),), {"reason": "terminated", "terminated_by": "daemon"}),
    ],
)
def test_the_end_of_a_session_says_why(entries: tuple[Any, ...], ended: dict[str, Any]) -> None:
    found = check(log(ACTIVE, *turn(chunk("a"))[:3], *entries))
    assert types(found)[-2:] == ["turn.ended", "session.ended"]
    assert found[-1]["data"] == ended


@pytest.mark.parametrize("reason", ["disposed: exit code 0", "stopped: signal 15"])
def test_a_session_whose_agent_we_stopped_goes_on(reason: str) -> None:
    found = check(log(ACTIVE, CRASH, SessionStatus(status="disconnected", reason=reason), ACTIVE))
    assert "session.ended" not in types(found)
    details = [item["content"][0]["detail"] for item in completed(found, "status")]
    assert details == [f"disconnected: {reason}", "active"]


def test_what_is_shown_of_our_own_events_is_not_said_to_be_the_agents() -> None:
    stopped = SessionStatus(status="disconnected", reason="disposed: exit code 0")
    restart = Diagnostic(code=DiagnosticCode.AGENT_RESTART_SCHEDULED, message="soon")
    found = check(
        log(ACTIVE, stopped, restart, SessionReset(reason="loaded"), Draft("of-tomorrow", b"{}"), ACTIVE)
    )
    ends = [event for event in found if event["type"] == "item.completed"]
    assert [(event["source"], event["synthetic"]) for event in ends] == [("daemon", True)] * 4
    (said,) = (each for each in check(log(ACTIVE, tagged("plan"))) if each["type"] == "item.completed")
    assert said["source"] == "agent"


def test_a_session_that_comes_back_after_its_end_is_started_again() -> None:
    gone = SessionStatus(status="disconnected", reason="crashed: exit code 3")
    found = check(log(ACTIVE, CRASH, gone, ACTIVE, *turn(), SessionStatus(status="closed")))
    life = [type_ for type_ in types(found) if type_.startswith("session.")]
    assert life == ["session.started", "session.ended", "session.started", "session.ended"]


def test_a_reset_begins_anew_beyond_every_number_of_before() -> None:
    whole = log(ACTIVE, *turn(call(), chunk("a"))[:4], SessionReset(reason="loaded"), chunk("b"), ACTIVE)
    found = check(whole)
    place = next(n for n, event in enumerate(found) if event["sequence"] > floor(6))
    assert types(found)[place - 2 : place] == ["item.completed", "turn.ended"]
    assert [event["sequence"] for event in found[place:]] == [floor(6) + n for n in range(1, 6)]
    assert types(found)[place:] == [
        *("session.started", "item.started", "item.completed", "item.started", "item.delta"),
    ]
    assert completed(found[place:])[0]["content"][0] == {
        "type": "status",
        "label": "session-reset",
        "detail": "loaded",
    }
    ids = {each["data"]["item"]["item_id"] for each in found if each["type"] == "item.started"}
    assert {f"itm_{floor(6) + 1}", f"itm_{floor(6) + 2}"} <= ids


@pytest.mark.parametrize(
    ("code", "type_"),
    [
        (DiagnosticCode.AGENT_KILL, "error"),
        (DiagnosticCode.STORAGE_WRITE_FAILED, "error"),
        (DiagnosticCode.AGENT_STRAY_LINE, "agent.unparsed"),
        (DiagnosticCode.AGENT_LINE_TOO_LONG, "agent.unparsed"),
        (DiagnosticCode.AGENT_RESTART_SCHEDULED, "item.completed"),
    ],
)
def test_a_diagnostic_is_an_error_if_it_is_trouble(code: DiagnosticCode, type_: str) -> None:
    found = check(log(Diagnostic(code=code, message="so it is", data={"n": 1})))
    assert types(found)[-1] == type_
    assert b"so it is" in project(log(Diagnostic(code=code, message="so it is")))[-1]


def test_every_code_of_a_diagnostic_has_its_place() -> None:
    check(log(*(Diagnostic(code=code, message="m") for code in DiagnosticCode)))


@pytest.mark.parametrize("tag", UPDATES)
def test_every_update_of_the_protocol_is_shown(tag: str) -> None:
    found = check(log(ACTIVE, tagged(tag), *turn()))
    assert len(found) > 5


STATES = {
    "plan": "0 of 1 done",
    "plan_update": "p1: 1 of 1 done",
    "plan_removed": "p1: removed",
    "available_commands_update": "web",
    "current_mode_update": "plan",
    "config_option_update": "b=True, model=x",
    "session_info_update": None,
    "usage_update": "10 of 200 tokens, 0.5 USD",
    "notice": "very",
    "compaction_update": "completed",
}


@pytest.mark.parametrize(("tag", "detail"), STATES.items())
def test_an_update_of_state_is_a_status_with_the_whole_of_it(tag: str, detail: str | None) -> None:
    (item,) = completed(check(log(tagged(tag))))
    status, whole = item["content"]
    assert (item["kind"], status["type"], status["detail"]) == ("status", "status", detail)
    assert whole == {"type": "json", "json": tagged(tag)}


def test_an_unknown_update_survives_whole() -> None:
    update = {"sessionUpdate": "mystery_update", "mystery": {"answer": 42}, "_meta": None}
    (item,) = completed(check(log(update, Draft("event-of-tomorrow", b'{"x":[1]}')))[:3])
    assert (item["kind"], item["content"]) == ("unknown", [{"type": "json", "json": update}])


def test_a_text_of_several_lines_is_one_line_in_the_projection() -> None:
    update = b'{\n  "sessionUpdate": "mystery",\r\n  "text": "a\\nb"\n}'
    (item,) = completed(check(log(update)))
    assert item["content"][0]["json"] == {"sessionUpdate": "mystery", "text": "a\nb"}


@pytest.mark.parametrize("raw", [b"{torn", b"\xff\xfe", b"[" * 20_000, b'{"a":NaN}', b""])
def test_what_cannot_be_read_is_unparsed_and_its_text_is_kept(raw: bytes) -> None:
    event = check(log(raw))[-1]
    assert event["type"] == "agent.unparsed"
    assert len(event["data"]["raw_hash"]) == 64
    assert event["raw"]["payload"] == raw.decode("utf-8", "replace")


def test_half_a_character_is_passed_on_and_becomes_whole_with_its_other_half() -> None:
    halves = [json.dumps(chunk(half)).encode() for half in ("\ud83d", "\ude00")]
    found = check(log(*halves, *turn()))
    deltas = [each["data"]["delta"] for each in found if each["type"] == "item.delta"]
    assert deltas == ["\ud83d", "\ude00"]
    assert b"\\ud83d\\ude00" in b"".join(project(log(*halves, *turn())))


def nested(depth: int) -> list[bytes]:
    inner = b"[" * depth + b"]" * depth
    return [
        b'{"sessionUpdate":"tool_call","toolCallId":"c","title":"[[[","rawInput":%b}' % inner,
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"x","_meta":%b}}' % inner,
        b'{"sessionUpdate":"mystery","x":%b}' % inner,
    ]


def depth_of(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max((depth_of(each) for each in inside), default=0)


def test_nesting_that_a_reader_could_not_read_is_unparsed_wherever_it_is_called_from() -> None:
    shallow = check(log(*nested(98), *turn()))
    assert "agent.unparsed" not in types(shallow)
    assert max(depth_of(event) for event in shallow) < 128
    for depth in (100, 500, 900, 20_000):
        deep = check(log(*nested(depth), *turn()))
        assert types(deep).count("agent.unparsed") == 3
        assert max(depth_of(event) for event in deep) < 10


def test_brackets_in_texts_nest_nothing() -> None:
    update = chunk('[{"\\' * 500)
    (item,) = completed(check(log(update, call())))
    assert item["content"][0]["text"] == '[{"\\' * 500


def test_a_text_without_an_end_is_looked_through_once() -> None:
    found = check(log(b"[" + b"[]," * 101 + b'"' + b'\\"' * 300_000))
    assert types(found)[-1] == "agent.unparsed"


def test_the_native_line_stands_beside_the_update() -> None:
    native = b'{"type":"assistant","n":1}'
    draft = Draft("agent-message-chunk", json.dumps(chunk("a")).encode(), native)
    odd = Draft("agent-message-chunk", json.dumps(chunk("b")).encode(), b"not\nJSON")
    rows = [event["raw"] for event in check(log(draft, odd)) if event["raw"]]
    assert rows == [
        {
            "seq": 1,
            "type": "agent-message-chunk",
            "payload": chunk("a"),
            "native": {"type": "assistant", "n": 1},
        },
        {"seq": 2, "type": "agent-message-chunk", "payload": chunk("b"), "native": "not\nJSON"},
    ]


def test_a_message_that_is_very_long_goes_on_in_another_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an item repeats its text, and nobody may be held up by that."""
    monkeypatch.setattr("legation.wire.universal.text_items.MOST_TEXT", 100)
    found = check(log(*[chunk(f"{number:020}") for number in range(30)]))
    ended = [text_of(event["data"]["item"]) for event in found if event["type"] == "item.completed"]
    assert len(ended) > 3
    assert max(map(len, ended)) < 150
    assert "".join(f"{number:020}" for number in range(30)).startswith("".join(ended))


def test_a_turn_of_very_many_calls_ends_the_oldest_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its end would end them all at once."""
    monkeypatch.setattr("legation.wire.universal.tool_items.KEPT", 5)
    told = log(*turn(*[call(f"c{number}", title="t") for number in range(30)]))
    ended = [event for event in check(told) if event["type"] == "item.completed"]
    assert len(ended) >= 30
    projector = Projector(FACTS)
    assert max(len(projector.feed(event)) for event in told) <= 8


def test_calls_that_say_much_end_the_oldest_before_the_end_of_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is open is repeated at the end of a turn, at once, and is in memory until then."""
    monkeypatch.setattr("legation.wire.universal.tool_items.KEPT_BYTES", 50_000)
    long = {"content": "x" * 10_000}
    told = log(
        *turn(*[call(f"c{number}", title="t", rawInput=long) for number in range(30)], call("c29", title="t"))
    )
    ended = [event for event in check(told) if event["type"] == "item.completed"]
    assert len(ended) >= 30
    projector = Projector(FACTS)
    assert max(sum(len(each.encode()) for each in projector.feed(event)) for event in told) < 100_000


def test_a_call_that_has_ended_takes_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legation.wire.universal.tool_items.KEPT_BYTES", 50_000)
    long = {"content": "x" * 10_000}
    calls = [
        entry
        for number in range(30)
        for entry in (call(f"c{number}", title="t", rawInput=long), change(f"c{number}", status="completed"))
    ]
    items = [
        event["data"]["item"]
        for event in check(log(*turn(call("first", title="t"), *calls)))
        if event["type"] == "item.completed"
    ]
    assert [each["status"] for each in items].count("failed") == 1  # the one that never ended


def test_the_end_of_a_message_joins_few_pieces_however_many_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []
    one_literal = text_items._one_literal

    def counted(literals: Sequence[bytes | memoryview]) -> bytes | memoryview:
        joined.append(len(literals))
        return one_literal(literals)

    monkeypatch.setattr(text_items, "_one_literal", counted)
    told = log(*turn(*[chunk(f"{number} ") for number in range(20_000)]))
    fed, run = Projector(FACTS), Projector(FACTS)
    found = [json.loads(each.encode()) for event in told for each in fed.feed(event)]
    assert text_of(completed(found, "message")[-1]) == "".join(f"{number} " for number in range(20_000))
    at = 0
    while at < len(told):  # as a live body has it
        rows = run.go_on(told[: at + 50], at)
        if not rows:
            run.feed(told[at])
        at += len(rows) or 1
    assert max(joined) <= 2_000


@pytest.mark.parametrize("together", [1, 2, 3])
def test_pieces_that_are_joined_early_are_the_same_message(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    entries: list[Entry] = [
        chunk("a"),
        chunk("b"),
        block(type="image", data="AAAA", mimeType="image/png"),
        chunk("c"),
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\ud83d"}}',
        b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\\ude00"}}',
        chunk("d"),
    ]
    told = log(*turn(*entries))
    expected = project(told)
    monkeypatch.setattr("legation.wire.universal.text_items.TOGETHER", together)
    check(told)
    assert project(told) == expected
    copied, found = Projector(FACTS), list[bytes]()
    for event in told:  # a copy of it goes on elsewhere, as from a checkpoint
        aside = copied.copy()
        aside.feed(log(chunk("elsewhere"), first=event.seq)[0])
        found += [each.encode(True) for each in copied.feed(event)]
    assert found == expected


def test_a_message_of_very_many_pictures_goes_on_in_another_item() -> None:
    """What is no text counts, too: the end of an item repeats it."""
    picture = block(type="image", data="AAAA", mimeType="image/png")
    found = check(log(*turn(*[picture for _ in range(MOST_PARTS + 100)])))
    ended = [len(item["content"]) for item in completed(found, "message") if item["role"] == "assistant"]
    assert len(ended) == 2
    assert max(ended) <= MOST_PARTS + 1


def test_a_text_is_written_when_it_comes_and_not_again_at_the_end_of_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the end of a message writes megabytes at once."""
    encoded: list[int] = []

    def counted(value: object) -> bytes:
        found = json_bytes(value)
        encoded.append(len(found))
        return found

    monkeypatch.setattr(text_items, "json_bytes", counted)
    projector = Projector(FACTS)
    *said, ended = log(
        *[chunk("\n" * 400_000) for _ in range(5)], PromptFinished(turn="t", stop_reason="end_turn")
    )
    for event in said:
        projector.feed(event)
    encoded.clear()
    assert projector.feed(ended)[0].type == "item.completed"
    assert sum(encoded) < 1_000
