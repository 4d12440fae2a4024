import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import UPDATES, json_updates, json_values, tagged

from legation.wire.event_types import Normalized, normalize_session_update
from legation.wire.events import UNRECOGNIZED, update_type

MAY_BE_OMITTED = {
    "name",
    "kind",
    "status",
    "content",
    "locations",
    "title",
    "messageId",
    "cost",
    "description",
    "summary",
    "error",
}


@pytest.mark.parametrize("tag", UPDATES)
def test_a_full_update_is_its_type_and_its_fields(tag: str) -> None:
    assert normalize_session_update(tagged(tag)) == Normalized(tag.replace("_", "-"), UPDATES[tag], {})


def test_null_of_an_optional_key_is_omitted() -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text"}, "messageId": None}
    assert normalize_session_update(update).payload == {"content": {"type": "text"}}


def test_null_of_a_required_key_is_kept() -> None:
    assert normalize_session_update({"sessionUpdate": "plan", "entries": None}).payload == {"entries": None}


def test_null_that_clears_session_info_is_kept() -> None:
    fields = {"title": None, "updatedAt": None}
    assert normalize_session_update({"sessionUpdate": "session_info_update", **fields}).payload == fields


@pytest.mark.parametrize("tag", ["tool_call", "tool_call_update"])
def test_null_input_and_output_of_a_tool_are_passed_through(tag: str) -> None:
    fields = {"toolCallId": "c", "rawInput": None, "rawOutput": None}
    update = {"sessionUpdate": tag, **fields, "kind": None, "content": None, "locations": None}
    assert normalize_session_update(update).payload == fields


def test_title_is_omitted_when_null_only_where_it_is_optional() -> None:
    fields = {"toolCallId": "c", "title": None}
    assert normalize_session_update({"sessionUpdate": "tool_call", **fields}).payload == fields
    patch = normalize_session_update({"sessionUpdate": "tool_call_update", **fields})
    assert patch.payload == {"toolCallId": "c"}


def test_nested_nulls_are_passed_through() -> None:
    fields = {"toolCallId": "c", "content": [{"type": "diff", "path": "/a", "oldText": None, "newText": ""}]}
    assert normalize_session_update({"sessionUpdate": "tool_call_update", **fields}).payload == fields


def test_meta_and_unknown_keys_are_extensions() -> None:
    extensions = {"_meta": {"a": None}, "vendor": [1], "nothing": None}
    update = {"sessionUpdate": "current_mode_update", "currentModeId": "x", **extensions}
    assert normalize_session_update(update) == Normalized(
        "current-mode-update", {"currentModeId": "x"}, extensions
    )


def test_an_unrecognized_update_is_kept_whole() -> None:
    update = {"sessionUpdate": "_vendor", "_meta": {"a": 1}, "x": None}
    assert normalize_session_update(update) == Normalized(UNRECOGNIZED, update, {})


@pytest.mark.parametrize("raw", [b"not json", b"", b'{"sessionUpdate":"plan","entries":1e999}', b"NaN"])
def test_unreadable_text_is_kept_as_text(raw: bytes) -> None:
    assert normalize_session_update(raw) == Normalized(UNRECOGNIZED, raw.decode(), {})


def test_nesting_beyond_the_stack_is_kept_as_text() -> None:
    bomb = b'{"sessionUpdate":"plan","entries":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert normalize_session_update(bomb) == Normalized(UNRECOGNIZED, bomb.decode(), {})


def test_lone_surrogates_and_large_numbers_lose_nothing() -> None:
    raw = rb'{"sessionUpdate":"tool_call_update","toolCallId":"\ud800","rawInput":1208925819614629174706176}'
    assert normalize_session_update(raw).payload == {"toolCallId": "\ud800", "rawInput": 2**80}


@given(json_updates)
def test_put_together_again_nothing_is_lost_but_omitted_nulls(update: dict[str, object]) -> None:
    result = normalize_session_update(json.dumps(update).encode())
    if result.type == UNRECOGNIZED:
        assert result.payload == update
        return
    assert isinstance(result.payload, dict)
    assert not result.payload.keys() & result.extensions.keys()
    together = {"sessionUpdate": result.type.replace("-", "_"), **result.payload, **result.extensions}
    lost = update.keys() - together.keys()
    assert lost <= MAY_BE_OMITTED
    assert all(update[key] is None for key in lost)
    assert together == {key: value for key, value in update.items() if key not in lost}


@given(json_updates | json_values)
def test_bytes_and_mapping_agree_with_each_other_and_with_the_row(value: object) -> None:
    raw = json.dumps(value).encode()
    result = normalize_session_update(raw)
    assert result.type == update_type(raw)
    if isinstance(value, dict):
        assert normalize_session_update(value) == result


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    assert isinstance(normalize_session_update(raw), Normalized)
