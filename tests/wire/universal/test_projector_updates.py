"""Every update, diagnostic and unreadable event in the projection."""

import json

import pytest
from tests.wire.samples import UPDATES, tagged
from tests.wire.universal.laws import check, completed, project, types
from tests.wire.universal.logs import ACTIVE, call, chunk, log, turn

from legation.wire.event_types import (
    Diagnostic,
    DiagnosticCode,
)
from legation.wire.events import Draft


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


@pytest.mark.heavy
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
