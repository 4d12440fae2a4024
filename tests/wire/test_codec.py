import json

import pytest

from legation.agents.modes import setup_facts
from legation.wire.acp.methods import McpServer, PermissionOption, SessionSetup, Usage
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import BooleanOption, SessionMode, SessionModeState, Text, Unread, Unrecognized
from legation.wire.action import Action, Ask, Decision
from legation.wire.event_types import (
    DIAGNOSTIC_MEANINGS,
    HOST_STREAM,
    SESSION_STREAM,
    AgentExited,
    AgentRemoved,
    AgentUpdated,
    Diagnostic,
    DiagnosticCode,
    ExitStatus,
    ExtensionAnswered,
    ExtensionMessage,
    McpServerNames,
    PermissionAnswered,
    PermissionAsked,
    PermissionUpdated,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    SessionUpdated,
    SetupFacts,
    TurnState,
    UnaskedEffect,
    UnaskingMode,
    decode,
    draft,
)
from legation.wire.events import Draft, Event, Payload

ASK = Ask(
    id="perm_1",
    session_id="ses_1",
    action=Action(agent="a", tool="t", params={"n": 2**80}),
    options=(PermissionOption(option_id="y", name="Yes", kind="allow_once"),),
    title="Write a.py",
    asked_at=1,
    expires_at=2,
    tool_call_id="c",
    turn="turn_1",
)
ASKED = PermissionAsked.from_ask(ASK)
FACTS = SetupFacts(
    modes=SessionModeState(current_mode_id="plan", available_modes=(SessionMode(id="plan", name="Plan"),)),
    config_options=(BooleanOption(id="b", name="B", current_value=True),),
)
ERROR = RpcError(code=-32000, message="sign in", data={"a": None})

PAYLOADS: list[tuple[str, Payload]] = [
    ("session-status", SessionStatus(status="active")),
    ("session-reset", SessionReset()),
    ("setup-facts", FACTS),
    ("turn-state", TurnState(turn="turn_1", state="requires-action")),
    ("prompt-started", PromptStarted(turn="turn_1", prompt=(Text(text="\ud800"),))),
    ("prompt-finished", PromptFinished(turn="t", stop_reason="end_turn", error=ERROR, usage=Usage())),
    ("permission-asked", ASKED),
    ("permission-answered", PermissionAnswered(id="perm_1", outcome="expired", by="clock")),
    ("unasked-effect", UnaskedEffect(title="Write a.py", action=ASK.action, rule="p:edits", ends_turn=True)),
    ("unasking-mode", UnaskingMode(mode="yolo", found="left", put_into="default")),
    ("question-asked", QuestionAsked(id="q", message="which?", mode="form", requested_schema={"a": 1})),
    ("question-answered", QuestionAnswered(id="q", outcome="accepted", by="me", content={"a": 1})),
    ("extension-message", ExtensionMessage(method="_vendor/ask", params={"a": [None]}, request=True)),
    ("extension-answered", ExtensionAnswered(method="_vendor/ask", result=[1], error=ERROR)),
    ("agent-exited", AgentExited(signal=9, stderr_tail="boom")),
    ("diagnostic", Diagnostic(code=DiagnosticCode.AGENT_KILL, message="killed", data={"pid": 1})),
    ("agent-updated", AgentUpdated(agent_id="a", status="exited", restart_count=1, exit=ExitStatus(code=7))),
    ("agent-removed", AgentRemoved(agent_id="a")),
    ("session-updated", SessionUpdated(session_id="s", status="active", cwd="/w", additional_directories=())),
    ("permission-updated", PermissionUpdated(id="perm_1", session_id="s", state="pending", ask=ASKED)),
]


@pytest.mark.parametrize(("name", "payload"), PAYLOADS)
def test_a_payload_survives_the_log(name: str, payload: Payload) -> None:
    row = draft(payload)
    assert row.type == name
    assert b"\n" not in row.raw
    assert decode(row) == payload
    assert decode(Event(seq=1, at=1, type=row.type, raw=row.raw)) == payload


def test_an_option_of_an_unknown_form_does_not_hide_the_other_facts() -> None:
    odd = {"type": "dial", "id": "d"}
    (row,) = setup_facts(SessionSetup(modes=FACTS.modes, config_options=(Unread(value=odd),)))
    assert json.loads(row.payload)["configOptions"] == [odd]
    assert decode(row) == SetupFacts(modes=FACTS.modes, config_options=(Unread(value=odd),))


def test_every_own_event_is_covered_above() -> None:
    assert {type(payload) for _, payload in PAYLOADS} == {*SESSION_STREAM, *HOST_STREAM}


def test_the_wire_is_camel_case_and_absent_fields_are_left_out() -> None:
    raw = draft(PromptFinished(turn="t", stop_reason="end_turn")).raw
    assert json.loads(raw) == {"turn": "t", "stopReason": "end_turn"}


def test_an_asked_permission_holds_all_that_a_reader_needs_to_answer() -> None:
    assert json.loads(draft(ASKED).raw) == {
        "id": "perm_1",
        "title": "Write a.py",
        "action": {"agent": "a", "tool": "t", "params": {"n": 2**80}},
        "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}],
        "askedAt": 1,
        "expiresAt": 2,
        "toolCallId": "c",
        "turn": "turn_1",
    }


def test_an_answer_says_who_why_and_what_the_agent_was_told() -> None:
    decision = Decision("denied", by="policy", reason="rule 3", message="no")
    assert PermissionAnswered.from_decision("perm_1", decision, "n") == PermissionAnswered(
        id="perm_1", outcome="denied", by="policy", reason="rule 3", option_id="n", message="no"
    )


def test_values_of_variables_and_headers_stay_out_of_the_stream() -> None:
    local = McpServerNames.from_server(McpServer.stdio("fs", "cmd", ("--key=hush",), {"TOKEN": "hush"}))
    remote = McpServerNames.from_server(
        McpServer.http("gh", "https://hush@x.test", {"Authorization": "hush"})
    )
    update = SessionUpdated(
        session_id="s", status="active", cwd="/", additional_directories=(), mcp_servers=(local, remote)
    )
    raw = draft(update).raw
    assert b"hush" not in raw
    assert (local.env, remote.headers) == (("TOKEN",), ("Authorization",))


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (Draft("from-the-future", b'{"a":1}'), {"a": 1}),
        (Draft("turn-state", b'{"turn":7}'), {"turn": 7}),
        (Draft("diagnostic", b'{"code":"agent/new","message":"m"}'), {"code": "agent/new", "message": "m"}),
        (Draft("turn-state", b"garbage"), None),
        (Draft("plan", b"garbage"), None),
    ],
)
def test_a_row_of_another_version_is_kept(row: Draft, value: object) -> None:
    assert decode(row) == Unrecognized(row.raw, value)


def test_every_diagnostic_code_has_a_meaning() -> None:
    assert set(DIAGNOSTIC_MEANINGS) == set(DiagnosticCode)
