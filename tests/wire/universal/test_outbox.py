"""A delta is written by a way of its own, and nobody can tell."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.wire.events import Event
from legation.wire.universal.output import MAX_NESTING, Outbox, ProjectedEvent, nests_too_deep, time_of
from legation.wire.universal.shapes import ItemDelta, Metadata, SessionFacts, Source, UniversalEvent

_texts = st.text(st.characters(exclude_categories=()))  # halves of characters too
_names = st.none() | st.text(max_size=5)


@given(
    text=_texts,
    native_item=_names,
    native_session=_names,
    name=st.text(max_size=5),
    at=st.integers(0, 4 * 10**12),
    synthetic=st.booleans(),
)
def test_a_delta_is_written_as_every_event_is(
    text: str, native_item: str | None, native_session: str | None, name: str, at: int, synthetic: bool
) -> None:
    cause = Event(7, at, "agent-message-chunk", b"{}")
    session = SessionFacts(name, "rehearsal", native_session, Metadata("rehearsal"))
    delta = ItemDelta("itm_3", native_item, text)
    found = ProjectedEvent(12, "item.delta", delta, synthetic, not synthetic, cause, session).encode()
    source: Source = "daemon" if synthetic else "agent"
    whole = UniversalEvent(
        "evt_12", 12, time_of(cause), name, native_session, synthetic, source, "item.delta", delta
    )
    try:
        assert found == msgspec.json.encode(whole)
    except UnicodeEncodeError:
        assert b'"type":"item.delta"' in found  # with escapes, which msgspec does not write
        assert found.isascii()


@given(
    text=st.text(),
    native_item=_names,
    native_session=_names,
    name=st.text(max_size=5),
    at=st.integers(0, 4 * 10**12),
)
def test_a_delta_is_written_around_the_text_as_every_event_is(
    text: str, native_item: str | None, native_session: str | None, name: str, at: int
) -> None:
    cause = Event(7, at, "agent-message-chunk", b"{}")
    session = SessionFacts(name, "rehearsal", native_session, Metadata("rehearsal"))
    out = Outbox(session)
    whole, around = out.begin(cause), out.delta_head("itm_3", native_item)
    out.delta("itm_3", native_item, text)
    out.delta("itm_3", native_item, text, head=around, literal=msgspec.json.encode(text))
    first, second = (each.encode() for each in whole)
    assert second.replace(b'"evt_2","sequence":2', b'"evt_1","sequence":1', 1) == first


def test_a_delta_with_its_cause_shows_it() -> None:
    cause = Event(7, 0, "agent-message-chunk", b'{"a":1}')
    session = SessionFacts("s", "rehearsal", None, Metadata("rehearsal"))
    found = ProjectedEvent(1, "item.delta", ItemDelta("itm_1", None, "x"), False, True, cause, session)
    assert msgspec.json.decode(found.encode(include_raw=True))["raw"]["payload"] == {"a": 1}
    assert msgspec.json.decode(found.encode())["raw"] is None


@pytest.mark.parametrize("opening", [b"[", b"{", b'{"a":[', b'{"a":{"b":['])
@pytest.mark.parametrize("before", [b"", b" " * 50, b" " * (MAX_NESTING + 1)])
def test_nesting_is_seen_wherever_it_begins(opening: bytes, before: bytes) -> None:
    depth = sum(opening.count(mark) for mark in (b"[", b"{"))
    assert nests_too_deep(before + opening * (MAX_NESTING // depth + 1))
    assert not nests_too_deep(before + opening * (MAX_NESTING // depth))


def test_brackets_in_a_text_are_no_nesting() -> None:
    assert not nests_too_deep(b'{"text":"' + b"[{" * 5 * MAX_NESTING + b'"}')
