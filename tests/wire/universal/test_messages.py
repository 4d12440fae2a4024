from typing import Any

from tests.wire.samples import UPDATES, tagged
from tests.wire.universal.laws import FACTS, check, messages_of
from tests.wire.universal.logs import ACTIVE, Entry, asked, block, call, change, chunk, log, output, turn

from legation.wire.acp.rpc import RpcError
from legation.wire.action import Action
from legation.wire.event_types import (
    AgentExited,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    QuestionAsked,
    SessionReset,
    SessionStatus,
)
from legation.wire.universal.items import KEPT
from legation.wire.universal.messages import MessageProjector
from legation.wire.universal.projector import encode_state


def data_of(*entries: Entry) -> list[dict[str, Any]]:
    made = log(*entries)
    check(made)
    return [event["data"] for event in messages_of(made)]


def parts_of(*entries: Entry) -> list[dict[str, Any]]:
    found = [data["message"] for data in data_of(*entries) if data["type"] == "message"]
    return [part for message in found for part in message.get("parts", ())]


def test_a_turn_is_its_messages() -> None:
    made = log(ACTIVE, *turn(chunk("hm", kind="agent_thought"), chunk("Hel", "m1"), chunk("lo", "m1")))
    found = messages_of(made)
    assert [event["id"] for event in found] == [1, 2, 3, 4, 5]
    assert [event["data"]["type"] for event in found] == [
        "started",
        "message",
        "message",
        "message",
        "unknown",
    ]
    assert found[0] == {
        "id": 1,
        "timestamp": "2026-09-21T14:13:20.124000Z",
        "session_id": "mine",
        "agent": "rehearsal",
        "data": {
            "type": "started",
            "details": {
                "agent": "rehearsal",
                "agentMode": "build",
                "model": None,
                "permissionMode": "default",
                "variant": None,
            },
        },
        "agent_session_id": "native-1",
    }
    assert found[3]["data"]["message"] == {
        "type": "parsed",
        "role": "assistant",
        "parts": [{"type": "text", "text": "Hello"}],
        "metadata": {"item_id": "itm_3", "status": "completed", "native_item_id": "m1"},
    }
    assert found[4]["data"]["raw"]["payload"]["stopReason"] == "end_turn"
    thought = {"type": "reasoning", "text": "hm", "visibility": "public"}
    assert found[2]["data"]["message"]["parts"] == [{"type": "unknown", "raw": thought}]


def test_all_nine_kinds_of_parts_are_made() -> None:
    found = parts_of(
        *turn(
            chunk("hi"),
            block(type="image", data="aGk=", mimeType="image/png"),
            block(type="image", data="", mimeType="image/png", uri="https://example.org/a.png"),
            block(type="audio", data="aGk=", mimeType="audio/wav"),
            block(type="resource", resource={"uri": "file:///n", "text": "note", "mimeType": "text/plain"}),
            block(type="resource", resource={"uri": "file:///b", "blob": "aGk="}),
            block(type="resource_link", name="n", uri="https://example.org/"),
            block(type="resource_link", name="n", uri="file:///a"),
            block(type="hologram"),
            call("c1", name="Bash", rawInput={"command": "ls"}),
            change("c1", status="failed", content=output("no")),
            call("c2", name="mcp__fs__read", rawInput={"path": "a"}),
            change("c2", status="completed", content=output("yes")),
            call("c3", kind="execute"),
            call("c4", kind="execute", status="in_progress"),
        )
    )
    assert found == [
        {"type": "text", "text": "do it"},
        {"type": "text", "text": "hi"},
        {
            "type": "image",
            "source": {"type": "data", "data": "aGk=", "encoding": "base64"},
            "mime_type": "image/png",
        },
        {
            "type": "image",
            "source": {"type": "url", "url": "https://example.org/a.png"},
            "mime_type": "image/png",
        },
        {
            "type": "file",
            "source": {"type": "data", "data": "aGk=", "encoding": "base64"},
            "mime_type": "audio/wav",
        },
        {
            "type": "file",
            "source": {"type": "data", "data": "note"},
            "mime_type": "text/plain",
            "filename": "file:///n",
        },
        {
            "type": "file",
            "source": {"type": "data", "data": "aGk=", "encoding": "base64"},
            "filename": "file:///b",
        },
        {
            "type": "file",
            "source": {"type": "url", "url": "https://example.org/"},
            "filename": "n",
            "raw": {"type": "resource_link", "name": "n", "uri": "https://example.org/"},
        },
        {
            "type": "file",
            "source": {"type": "path", "path": "/a"},
            "raw": {"type": "file_ref", "path": "/a", "action": "read", "diff": None},
        },
        {"type": "unknown", "raw": {"type": "hologram"}},
        {"type": "tool_call", "id": "c1", "name": "Bash", "input": {"command": "ls"}},
        {"type": "tool_result", "id": "c1", "output": "no", "name": "Bash", "is_error": True},
        {"type": "function_call", "id": "c2", "name": "fs.read", "arguments": {"path": "a"}},
        {"type": "function_result", "id": "c2", "name": "fs.read", "result": "yes"},
        {"type": "tool_call", "id": "c4", "name": "execute", "input": {}},
        {"type": "tool_call", "id": "c3", "name": "execute", "input": {}},
        {"type": "error", "message": "the turn ended before the tool did"},
        {"type": "tool_result", "id": "c4", "output": "", "name": "execute", "is_error": True},
        {"type": "error", "message": "the turn ended before the tool did"},
    ]


def test_a_result_knows_its_tool_wherever_the_log_is_cut() -> None:
    found = parts_of(
        *turn(call("c1", name="Bash"), change("c1", status="in_progress"), change("c1", status="completed"))
    )
    assert found[-1] == {"type": "tool_result", "id": "c1", "output": "", "name": "Bash"}


def test_a_permission_names_what_it_is_about_and_how_to_answer() -> None:
    _, permission, answered = data_of(asked(), PermissionAnswered(id="apr_1", outcome="denied", by="me"))
    assert permission.pop("metadata")["payload"]["action"]["command"] == "make"
    named = {
        name: value for name, value in permission.items() if name in ("id", "permission", "patterns", "reply")
    }
    assert permission.pop("permissionAsked") == named  # by the documents' own name, too
    assert permission == {
        "type": "permission_asked",
        "id": "apr_1",
        "permission": "Bash",
        "patterns": ["make", "/w/a"],
        "reply": ["once", "always", "reject"],
        "tool": {"call_id": "c1"},
    }
    assert (answered["type"], answered["raw"]["type"]) == ("unknown", "permission-answered")


def test_a_plan_is_a_question_beside_the_permission() -> None:
    action = Action(agent="claude", tool="ExitPlanMode", kind="switch_mode", params={"plan": "1. Paint it"})
    ask = PermissionAsked(id="apr_1", title="Ready to code?", action=action, options=(), asked_at=1)
    _, permission, question, answered = data_of(
        ask, PermissionAnswered(id="apr_1", outcome="approved", by="me")
    )
    assert (permission["type"], permission["id"]) == ("permission_asked", "apr_1")
    (asked_,) = question["questionAsked"]["questions"]
    assert (question["type"], question["id"]) == ("question_asked", "apr_1")
    assert asked_["question"] == "Ready to code?\n\n1. Paint it"
    assert asked_["options"] == [{"label": "Approve"}, {"label": "Reject"}]
    assert answered["type"] == "unknown"


def test_a_form_is_a_question_for_each_field() -> None:
    fields = {
        "sure": {"type": "boolean", "description": "Are you?"},
        "name": {"type": "string", "title": "Your name"},
    }
    form = QuestionAsked(id="q1", message="Who?", mode="form", requested_schema={"properties": fields})
    page = QuestionAsked(
        id="q2", message="Sign in", mode="url", url="https://example.org/", tool_call_id="c1"
    )
    _, asked_form, asked_page = data_of(form, page)
    assert asked_form.pop("questionAsked") == {"id": "q1", "questions": asked_form["questions"]}
    assert asked_form == {
        "type": "question_asked",
        "id": "q1",
        "questions": [
            {
                "question": "Are you?",
                "options": [{"label": "Yes"}, {"label": "No"}],
                "multi_select": False,
                "custom": False,
                "header": "sure",
            },
            {"question": "Who?", "options": [], "multi_select": False, "custom": True, "header": "Your name"},
        ],
    }
    assert asked_page["questions"][0]["question"] == "Sign in\nhttps://example.org/"
    assert asked_page["tool"] == {"call_id": "c1"}


def test_errors_are_errors() -> None:
    started, running, *_ = turn()
    found = data_of(
        started,
        running,
        PromptFinished(turn="trn_1", stop_reason="end_turn", error=RpcError(-32603, "overloaded")),
        AgentExited(code=3, stderr_tail="why"),
        SessionStatus(status="disconnected", reason="crashed: exit code 3"),
    )
    prompt, crash = (data for data in found if data["type"] == "error")
    assert prompt == {
        "type": "error",
        "message": "overloaded",
        "kind": "prompt_failed",
        "details": {"code": -32603, "message": "overloaded"},
    }
    assert (crash["kind"], crash["details"]["exit_code"], crash["details"]["stderr"]["head"]) == (
        "process_exit",
        3,
        "why",
    )


def test_what_cannot_be_read_is_an_unparsed_message() -> None:
    _, data = data_of(b"{torn")
    assert data["message"]["type"] == "unparsed"
    assert data["message"]["raw"]["payload"] == "{torn"


def test_every_update_of_the_protocol_is_shown_here_too() -> None:
    for tag in UPDATES:
        found = data_of(ACTIVE, tagged(tag), SessionReset(reason="loaded"))
        assert len(found) > 3


def test_the_names_of_very_many_calls_are_not_all_kept() -> None:
    projector = MessageProjector(FACTS)
    for event in log(*turn(*[call(f"c{number}", status="in_progress") for number in range(3 * KEPT)])[:-2]):
        projector.feed(event)
    assert KEPT <= len(projector.items.messages.tools) <= 2 * KEPT
    assert len(encode_state(projector.items.state()) or b"") < 1024 * 1024
