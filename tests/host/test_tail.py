from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.host.requests.services import OutputTail


def tail(limit: int, *chunks: bytes) -> OutputTail:
    made = OutputTail(limit)
    for chunk in chunks:
        made.add(chunk)
    return made


@pytest.mark.parametrize(
    ("limit", "data", "expected"),
    [
        (5, b"", ("", False)),
        (5, b"abcde", ("abcde", False)),
        (5, b"abcdef", ("bcdef", True)),
        (0, b"", ("", False)),
        (0, b"a", ("", True)),
        (4, "aéé".encode(), ("éé", True)),
        (3, "aéé".encode(), ("é", True)),
        (1, "é".encode(), ("", True)),
        (3, "😀".encode(), ("", True)),
        (4, "x😀".encode(), ("😀", True)),
        (5, "é\r\n".encode(), ("é\r\n", False)),
        (3, b"\xff", ("\ufffd", False)),
        (3, b"\xff\xff", ("\ufffd", True)),
        (
            5,
            b"ab\xffc",
            ("b\ufffdc", True),
        ),  # the mark of what is no UTF-8 counts as the three bytes it takes
    ],
)
def test_the_end_is_kept_within_the_limit(limit: int, data: bytes, expected: tuple[str, bool]) -> None:
    assert tail(limit, data).text(ended=True) == expected


def test_half_a_character_is_left_out_until_the_end() -> None:
    half = tail(10, b"a", "😀".encode()[:2])
    assert half.text(ended=False) == ("a", False)
    assert half.text(ended=True) == ("a\ufffd", False)
    half.add("😀".encode()[2:])
    assert half.text(ended=False) == ("a😀", False)


def test_memory_is_bounded_by_the_limit() -> None:
    full = tail(100, *[b"x" * 1000] * 1000)
    assert len(full._kept) == 100


@given(st.integers(0, 40), st.lists(st.text() | st.binary()), st.booleans())
def test_any_output_is_a_suffix_within_the_limit(limit: int, parts: list[str | bytes], ended: bool) -> None:
    chunks = [part.encode(errors="replace") if isinstance(part, str) else part for part in parts]
    text, truncated = tail(limit, *chunks).text(ended=ended)
    assert len(text.encode()) <= limit
    whole = b"".join(chunks)
    if not truncated:
        shown = whole.decode(errors="replace")
        assert shown == text or (not ended and shown.startswith(text))


@given(st.integers(0, 40), st.text(st.characters(exclude_categories=["Cs"])))
def test_text_is_cut_by_less_than_one_character(limit: int, text: str) -> None:
    shown, truncated = tail(limit, text.encode()).text(ended=True)
    assert text.endswith(shown)
    assert truncated == (shown != text)
    assert not truncated or len(shown.encode()) > limit - 4
