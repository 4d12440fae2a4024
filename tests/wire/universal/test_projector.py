"""Items of the projection: messages, tool calls, permissions and questions."""

import json
from typing import Any

import pytest
from tests.wire.samples import tagged
from tests.wire.universal.laws import check, completed, events_of, only, types
from tests.wire.universal.logs import ACTIVE, asked, block, call, change, chunk, log, output, turn

from legation.wire.action import Action
from legation.wire.event_types import (
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
)


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


@pytest.mark.parametrize(
    ("outcome", "response", "status"),
    [
        ("approved", "Approve", "answered"),
        ("denied", "Reject", "answered"),
        ("expired", None, "rejected"),
        ("cancelled", None, "rejected"),
    ],
)
def test_a_plan_is_a_question_beside_the_permission_and_ends_with_it(
    outcome: Any, response: str | None, status: str
) -> None:
    action = Action(agent="claude", tool="ExitPlanMode", kind="switch_mode", params={"plan": "1. Paint it"})
    ask = PermissionAsked(id="apr_1", title="Ready to code?", action=action, options=(), asked_at=1)
    found = check(log(ask, PermissionAnswered(id="apr_1", outcome=outcome, by="me")))
    assert types(found)[-4:] == [
        *("permission.requested", "question.requested", "permission.resolved", "question.resolved")
    ]
    told = {
        "question_id": "apr_1",
        "prompt": "Ready to code?\n\n1. Paint it",
        "options": ["Approve", "Reject"],
    }
    assert only(found, "question.requested") == {**told, "response": None, "status": "requested"}
    assert only(found, "question.resolved") == {**told, "response": response, "status": status}


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
