"""The SSE parser, against a plain reading of the standard (INV-C2)."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.client.decode import Frame, Parser
from legation.errors import InternalError


def reading(text: bytes) -> list[Frame]:
    """The standard, word by word, over the whole text at once."""
    frames, data, event, last_id = [], list[bytes](), "", ""
    *lines, _ = re.split(rb"\r\n|\n|\r", text.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        if not line:
            if data or event:
                frames.append(Frame(event, b"\n".join(data), last_id))
            data, event = [], ""
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
    return frames


def fed(parser: Parser, text: bytes, cuts: list[int]) -> list[Frame]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [frame for a, b in pairwise(places) for frame in parser.feed(text[a:b])]


LINES = st.sampled_from(
    b"data: {}|data|data:x|data:  y|event: bye|event|id: 3|id|id: a\0b|retry: 5|: ping|foo: bar|\xff||".split(
        b"|"
    )
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"])
STARTS = st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb", b"\xef\xbb\xbf\xef\xbb\xbf"])
TEXTS = st.builds(
    lambda start, lines, rest: start + b"".join(line + end for line, end in lines) + rest,
    STARTS,
    st.lists(st.tuples(LINES, ENDS), max_size=20),
    LINES,
)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=30))
def test_however_it_is_cut_the_frames_are_those_of_the_standard(text: bytes, cuts: list[int]) -> None:
    # A CR at the very end is a line's end for us at once; the plain reading cannot know better either.
    assert fed(Parser(), text, cuts) == reading(text)


@given(TEXTS)
def test_byte_by_byte_is_as_good_as_at_once(text: bytes) -> None:
    assert fed(Parser(), text, list(range(len(text)))) == Parser().feed(text)


def test_comments_and_unknown_fields_give_nothing() -> None:
    assert Parser().feed(b": legation\n\n: ping\n\nfoo: bar\n\n") == []


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_cut_in_two_gives_the_same(start: bytes, end: bytes) -> None:
    text = start + end.join([b"id: 7", b"data: a", b"data: b", b"", b": ping", b"", b"event: bye", b"", b""])
    for cut in range(len(text)):
        assert fed(Parser(), text, [cut]) == [Frame("", b"a\nb", "7"), Frame("bye", b"", "7")]


def test_an_incomplete_frame_is_not_given() -> None:
    assert Parser().feed(b"id: 1\ndata: {}\n") == []


@pytest.mark.parametrize(
    ("line", "seconds"),
    [(b"retry: 1500", 1.5), (b"retry: soon", None), (b"retry: -1", None), (b"retry", None)],
)
def test_retry_is_digits_or_nothing(line: bytes, seconds: float | None) -> None:
    parser = Parser()
    parser.feed(line + b"\n")
    assert parser.retry == seconds


@given(st.lists(st.integers(0, 120), max_size=10))
def test_an_event_within_the_limit_is_read_whatever_the_cuts(cuts: list[int]) -> None:
    assert fed(Parser(limit=100), b"data: " + b"x" * 90 + b"\n\n", cuts) == [Frame("", b"x" * 90, "")]


def test_many_lines_in_pieces_are_not_counted_together() -> None:
    assert len(fed(Parser(limit=100), b"data: 1234567890\n\n" * 50, list(range(0, 900, 7)))) == 50
    assert fed(Parser(limit=100), b": twenty bytes of it\n" * 50, list(range(0, 1050, 7))) == []


@pytest.mark.parametrize("text", [b"data: " + b"x" * 101 + b"\n", b"x" * 101, b"data: xxxxx\n" * 21])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_event_beyond_the_limit_is_refused(text: bytes, step: int) -> None:
    parser = Parser(limit=100)
    with pytest.raises(InternalError, match="longer than 100 bytes"):
        fed(parser, text, list(range(0, len(text), step)))


def test_a_long_line_in_small_pieces_takes_time_in_proportion() -> None:
    parser = Parser()
    piece = b"x" * 1024
    frames = parser.feed(b"data: ")
    for _ in range(32 * 1024):  # 32 MiB; joining at every piece would copy half a terabyte
        frames += parser.feed(piece)
    frames += parser.feed(b"\n\n")
    assert [len(frame.data) for frame in frames] == [32 * 2**20]
