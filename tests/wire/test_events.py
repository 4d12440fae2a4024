import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import UPDATES, json_updates, json_values, tagged

from legation.wire.events import (
    UNRECOGNIZED,
    UPDATE_TYPES,
    Event,
    decode_tag,
    params_draft,
    update_type,
)


@pytest.mark.parametrize("tag", UPDATES)
def test_a_stable_update_has_its_tag_as_type(tag: str) -> None:
    assert update_type(json.dumps(tagged(tag)).encode()) == tag.replace("_", "-")


def test_all_fourteen_stable_updates_and_those_of_named_plans_are_known() -> None:
    assert set(UPDATES) == set(UPDATE_TYPES)
    assert len(UPDATE_TYPES) == 14 + 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"not json",
        b'{"sessionUpdate":7}',
        b'{"sessionUpdate":"_vendor"}',
        b'{"sessionUpdate":"agent-message-chunk"}',
        b'{"sessionUpdate":"\xff"}',
        b'{"sessionUpdate":"plan"',
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b',"sessionUpdate":"plan"}',
    ],
)
def test_anything_else_is_unrecognized(raw: bytes) -> None:
    assert update_type(raw) == UNRECOGNIZED


def test_a_lone_surrogate_does_not_hide_the_type() -> None:
    assert update_type(rb'{"sessionUpdate":"plan","x":"\ud800"}') == "plan"


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    assert update_type(raw) == UNRECOGNIZED or b"sessionUpdate" in raw


@given(json_updates | json_values)
def test_the_type_follows_from_the_tag_of_any_json(value: object) -> None:
    tag = value.get("sessionUpdate") if isinstance(value, dict) else None
    expected = UPDATE_TYPES.get(tag, UNRECOGNIZED) if isinstance(tag, str) else UNRECOGNIZED
    for written in (json.dumps(value), json.dumps(value, separators=(",", ":"))):
        assert update_type(written.encode()) == expected
        with contextlib.suppress(ValueError):
            assert UPDATE_TYPES.get(decode_tag(written.encode()).sessionUpdate, UNRECOGNIZED) == expected


@given(st.text(st.characters(exclude_categories=())), json_updates)
def test_params_that_a_driver_makes_hold_the_session_and_the_update(name: str, update: object) -> None:
    text = json.dumps(update).encode()
    draft = params_draft(name, text, b"line")
    assert json.loads(draft.raw) == {"sessionId": name, "update": update}
    assert (draft.payload, draft.type, draft.native) == (text, update_type(text), b"line")


def test_a_row_without_a_span_is_all_payload() -> None:
    """As all rows of updates were before version 4."""
    raw = b'{"sessionUpdate":"plan","update":{"sessionUpdate":"notice"}}'
    assert Event(seq=1, at=2, type="plan", raw=raw).payload == raw


def test_an_event_cannot_be_changed() -> None:
    event = Event(seq=1, at=2, type="plan", raw=b"{}")
    with pytest.raises(AttributeError):
        event.seq = 2  # type: ignore[misc]
