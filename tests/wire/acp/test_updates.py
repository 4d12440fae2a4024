import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import TEXT, UPDATES, json_updates, json_values, tagged

from legation.wire.acp.updates import (
    AgentMessageChunk,
    BooleanOption,
    ConfigOptionUpdate,
    Content,
    Diff,
    PlanUpdate,
    SessionInfoUpdate,
    SessionUpdate,
    Text,
    ToolCall,
    ToolCallUpdate,
    Unread,
    Unrecognized,
    decode_update,
    merged,
)
from legation.wire.event_types import decode, draft


def read(update: object) -> SessionUpdate | Unrecognized:
    return decode_update(json.dumps(update).encode())


@pytest.mark.parametrize("tag", UPDATES)
def test_a_stable_update_is_typed_and_written_back_the_same(tag: str) -> None:
    update = read(tagged(tag))
    assert not isinstance(update, Unrecognized)
    assert json.loads(msgspec.json.encode(update)) == tagged(tag)


@pytest.mark.parametrize("tag", UPDATES)
def test_a_typed_update_becomes_the_row_it_came_from(tag: str) -> None:
    update = read(tagged(tag))
    assert not isinstance(update, Unrecognized)
    row = draft(update, native=b"line")
    assert (row.type, row.native) == (tag.replace("_", "-"), b"line")
    assert decode(row) == update


def test_meta_is_kept() -> None:
    update = read({"sessionUpdate": "notice", "severity": "info", "title": "t", "_meta": {"a": 1}})
    assert isinstance(update, msgspec.Struct)
    assert update.meta == {"a": 1}  # type: ignore[union-attr]


def test_unknown_words_and_fields_are_accepted() -> None:
    update = read({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "kind": "_fly", "new": 1})
    assert isinstance(update, ToolCall)
    assert update.kind == "_fly"


def test_null_and_absent_stay_apart_where_null_clears() -> None:
    update = read({"sessionUpdate": "session_info_update", "title": None})
    assert isinstance(update, SessionInfoUpdate)
    assert update.title is None
    assert update.updated_at is msgspec.UNSET


def test_an_unknown_content_block_is_kept_inside_its_update() -> None:
    block = {"type": "hologram", "depth": 3}
    update = read({"sessionUpdate": "agent_message_chunk", "content": block, "messageId": "m"})
    assert update == AgentMessageChunk(content=Unread(value=block), message_id="m")


def test_an_unknown_part_does_not_hide_the_rest_of_a_tool_call() -> None:
    call = tagged("tool_call_update")
    call["content"] = [
        {"type": "scribble"},
        {"type": "diff", "path": "/a", "newText": "x"},
        {"type": "content", "content": {"type": "hologram"}},
        {"type": "content", "content": TEXT},
    ]
    update = read(call)
    assert isinstance(update, ToolCallUpdate)
    assert update.status == "completed"
    assert update.content == (
        Unread(value={"type": "scribble"}),
        Diff(path="/a", new_text="x"),
        Content(content=Unread(value={"type": "hologram"})),
        Content(content=Text(text="hello")),
    )


def test_an_unknown_config_option_does_not_hide_the_others() -> None:
    slider = {"type": "slider", "id": "s", "currentValue": 3}
    known = {"type": "boolean", "id": "b", "name": "B", "currentValue": False}
    update = read({"sessionUpdate": "config_option_update", "configOptions": [slider, known]})
    assert isinstance(update, ConfigOptionUpdate)
    assert update.config_options == (
        Unread(value=slider),
        BooleanOption(id="b", name="B", current_value=False),
    )


@pytest.mark.parametrize(
    "value",
    [{"sessionUpdate": "_vendor", "x": 1}, {"sessionUpdate": "plan"}, {"no": "tag"}, [], 7, None],
)
def test_what_cannot_be_typed_is_kept_whole(value: object) -> None:
    raw = json.dumps(value).encode()
    assert decode_update(raw) == Unrecognized(raw, value)


def test_a_plan_of_an_unknown_form_is_kept_inside_its_update() -> None:
    plan = {"type": "gantt", "planId": "p", "bars": []}
    assert read({"sessionUpdate": "plan_update", "plan": plan}) == PlanUpdate(plan=Unread(value=plan))


def test_a_lone_surrogate_is_read_and_written() -> None:
    update = read({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "\ud800"}})
    assert update == AgentMessageChunk(content=Text(text="\ud800"))
    assert decode(draft(update)) == update


@given(json_updates | json_values)
def test_no_json_makes_it_raise(value: object) -> None:
    assert isinstance(read(value), msgspec.Struct)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    update = decode_update(raw)
    assert not isinstance(update, Unrecognized) or update.raw == raw


def test_a_permission_request_is_completed_from_the_call_before_it() -> None:
    before = ToolCall(tool_call_id="c", title="Edit", kind="edit", raw_input={"path": "a"})
    update = ToolCallUpdate(tool_call_id="c", title="Edit a", status="pending")
    both = merged(before, update)
    assert (both.title, both.kind, both.status) == ("Edit a", "edit", "pending")
    assert both.raw_input == {"path": "a"}
    assert b"sessionUpdate" not in msgspec.json.encode(both)
