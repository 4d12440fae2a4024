"""Events come with the bytes the agent sent (INV-C1)."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.client.decode import read_event, read_page, read_tagged
from legation.wire.events import Event

RAWS = [
    b"{}",
    b'{"a": 1 ,  "b":[ ]}',
    b'"\\ud83d"',  # half an emoji, which strict readers refuse
    b'{"cut":"\\ud83d","q":"\\"}],","n":1e999}',
    b"[" * 3000 + b"]" * 3000,
    b'{"raw":{"raw":1},"event":[",\\"raw\\":"]}',
    b"123456789012345678901234567890",
    '"é😀"'.encode(),
]


def line(raw: bytes, native: str = "") -> bytes:
    """As the log stores it: raw last, native before it."""
    before = b"" if not native else b',"native":' + msgspec.json.encode(native)
    return b'{"seq":7,"at":9,"type":"plan"%b,"raw":%b}' % (before, raw)


@pytest.mark.parametrize("raw", RAWS)
def test_raw_comes_back_byte_for_byte(raw: bytes) -> None:
    assert read_event(line(raw)) == Event(7, 9, "plan", raw)
    assert read_event(line(raw, 'x ,"raw":{')) == Event(7, 9, "plan", raw, b'x ,"raw":{')
    assert read_tagged(b'{"stream":"s","event":%b}' % line(raw)) == ("s", Event(7, 9, "plan", raw))


@pytest.mark.parametrize("raw", RAWS)
def test_a_page_reads_all_its_events_whatever_one_of_them_holds(raw: bytes) -> None:
    # In pages the native line stands behind raw.
    behind = b'{"seq":8,"at":9,"type":"plan","raw":%b,"native":"n]}"}' % raw
    page = read_page(b'{"items":[%b,%b,%b],"next":"8"}' % (line(b"1"), line(raw), behind))
    assert [event.raw for event in page.items] == [b"1", raw, raw]
    assert page.items[2].native == b"n]}"
    assert page.next == "8"


def test_a_native_line_that_is_no_text_comes_in_base64() -> None:
    assert read_event(b'{"seq":1,"at":2,"type":"t","native64":"/w==","raw":{}}').native == b"\xff"


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"null", b'{"seq":1,"raw":{}}', b'{"seq":"x","at":1,"type":"t","raw":1}']
)
def test_what_is_no_event_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_event(text)
    with pytest.raises(ValueError):
        read_page(text)


@given(st.binary(max_size=80), st.integers(0, 60))
def test_reading_raises_nothing_but_value_errors(noise: bytes, at: int) -> None:
    whole = line(b'{"a":"\\ud83d"}')
    for read in (read_event, read_tagged, read_page):
        with suppress(ValueError):
            read(whole[:at] + noise + whole[at:])


json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).map(msgspec.json.encode)


@given(json_texts)
@pytest.mark.heavy
def test_any_json_is_cut_out_as_it_stands(raw: bytes) -> None:
    # The half character beside it forces the way by cutting.
    wrapped = b'["\\ud83d",%b]' % raw
    assert read_event(line(wrapped)).raw == wrapped
