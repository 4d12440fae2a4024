import base64
import io
import json
import logging
import string
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from legation.errors import InvalidParams
from legation.redact import MIN_BYTES, RedactingFilter, Redactor
from legation.secret import Secret

KEY = "sk-Zz9/+\"\\é\n<&>'(key) 7Q"
MARKER = "[redacted:key]"

# Brackets are left out: next to a marker they can spell a secret that was not there.
VALUES = st.text(
    st.characters(exclude_characters="[]", exclude_categories=["Cs"]) | st.sampled_from('\\"/unt0%+'),
    min_size=6,
    max_size=20,
).filter(lambda value: "redacted:key" not in value and value not in MARKER)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"/unt0%+ '), max_size=40)


def redactor(value: str = KEY) -> Redactor:
    return Redactor([Secret(value, "key")])


def json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def php(value: object) -> str:
    return json.dumps(value).replace("/", "\\/")


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def urlsafe(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


FORMS: list[Callable[[str], str]] = [
    str,
    lambda value: json.dumps(value)[1:-1],
    lambda value: json_text(value)[1:-1],
    lambda value: php(value)[1:-1],
    lambda value: json.dumps(json.dumps(value)[1:-1])[1:-1],
    b64,
    urlsafe,
    lambda value: php(b64(value))[1:-1],
    lambda value: quote(value, safe=""),
    quote,
    quote_plus,
    lambda value: quote(value, safe="!'()*"),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_hidden_and_its_surroundings_kept(form: Callable[[str], str]) -> None:
    assert redactor().text(f"before {form(KEY)} after") == f"before {MARKER} after"
    assert redactor().bytes(f"before {form(KEY)} after".encode()) == f"before {MARKER} after".encode()


def test_lower_case_hex_digits_are_as_good_as_upper_case() -> None:
    assert redactor("a/b+c=d?").text("a%2fb%2bc%3dd%3f") == MARKER
    assert redactor("schlüssel").text(r"schl\u00FCssel schl\u00fcssel") == f"{MARKER} {MARKER}"


@given(VALUES, ANY_TEXT, ANY_TEXT)
@example("secret-\\", "a", "é")
def test_no_form_remains_wherever_it_stands(value: str, before: str, after: str) -> None:
    hide = redactor(value)
    for form in FORMS:
        assume(form(value) not in MARKER)
        shown = hide.text(before + form(value) + after)
        assert form(value) not in shown
        assert MARKER in shown


@given(
    st.permutations(string.ascii_letters + "+/~?").map(lambda chars: "".join(chars[:8])), ANY_TEXT, ANY_TEXT
)
def test_inside_longer_base64_only_its_outermost_bits_remain(value: str, before: str, after: str) -> None:
    assume(value not in before + after)
    for encode in (b64, urlsafe):
        shown = redactor(value).text(encode(before + value + after))
        head, marker, tail = shown.partition(MARKER)
        assert marker
        # A character at either end also holds bits of a neighbour: it stays, with at most four bits of the secret.
        assert len(head) <= len(encode(before).rstrip("="))
        assert len(tail.rstrip("=")) <= len(encode(after).rstrip("=")) + 1


@given(VALUES, ANY_TEXT, ANY_TEXT, st.sampled_from([json.dumps, json_text, php]))
@example("nabcdef", "\n", "", json.dumps)
@example("0041bcdef", "", "", json.dumps)
@example("abcdef\\", "", '"', json.dumps)
def test_json_stays_json_when_a_string_holds_the_secret(
    value: str, before: str, after: str, dump: Callable[[object], str]
) -> None:
    document = {"text": before + value + after, "nested": dump({"again": [value]}), "number": 1}
    assume('"' not in value)  # such a value can equal a piece of the structure
    shown = redactor(value).text(dump(document))
    assert value not in json.loads(shown)["text"]
    assert json.loads(json.loads(shown)["nested"]) is not None


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("nabcdef", r'{"a":"\nabcdef"}'),
        ("041bcdef", r'{"a":"\u0041bcdef"}'),
        ("1bcdefg", r'{"a":"x\\\u0041bcdefg"}'),
        ("abcdef\\", r'{"a":"abcdef\"","b":1}'),
        ("abcdef\\u00", r'{"a":"abcdef\u0041"}'),
    ],
)
def test_an_escape_is_replaced_whole(value: str, line: str) -> None:
    shown = redactor(value).bytes(line.encode())
    assert value.encode() not in shown
    assert MARKER in json.loads(shown)["a"]


def test_a_backslash_that_is_itself_escaped_stays() -> None:
    assert redactor("nabcdef").bytes(rb'{"a":"\\nabcdef"}') == rb'{"a":"\\[redacted:key]"}'


def test_a_backslash_at_its_end_does_not_take_the_line_end_along() -> None:
    assert redactor("abcdef\\").bytes(b"abcdef\\\nnext") == b"[redacted:key]\nnext"


@given(VALUES, st.binary(max_size=80))
def test_without_a_secret_the_same_object_comes_back(value: str, block: bytes) -> None:
    hide = redactor(value)
    assume(hide.bytes(block) == block)
    assert hide.bytes(block) is block
    text = block.decode("latin-1")
    assume(hide.text(text) == text)
    assert hide.text(text) is text


def test_a_piece_of_a_secret_alone_changes_nothing() -> None:
    block = b"0123456789abcdef0123456789abcde"
    assert redactor("xx-0123456789abcdef0123456789abcdef").bytes(block) is block
    tail = b"456789abcdef!"
    assert redactor("xx-0123456789abcdef").bytes(tail) is tail


def test_lone_surrogates_and_invalid_utf8_pass_through() -> None:
    assert redactor("abcdefgh").text("\ud800 abcdefgh") == f"\ud800 {MARKER}"
    assert redactor("abcdefgh").bytes(b"\xff\xfe abcdefgh \xff") == b"\xff\xfe [redacted:key] \xff"


def test_of_two_secrets_that_overlap_nothing_is_left() -> None:
    hide = Redactor([Secret("abcdefgh", "one"), Secret("efghijkl", "two")])
    assert hide.text("<abcdefghijkl> efghijkl") == "<[redacted:one]> [redacted:two]"


def test_the_longer_secret_wins_over_the_one_within_it() -> None:
    hide = Redactor([Secret("abcdef", "short"), Secret("abcdefghi", "long")])
    assert hide.text("abcdefghi abcdef") == "[redacted:long] [redacted:short]"


def test_each_of_many_secrets_is_hidden() -> None:
    """More of them than one search takes."""
    values = [f"{number:04}-secret-value-{number * 7919:08}" for number in range(60)]
    redactor = Redactor([Secret(value, f"S{number}") for number, value in enumerate(values)])
    for number, value in enumerate(values):
        assert redactor.text(f"before {value} after") == f"before [redacted:S{number}] after"
    assert redactor.text(" ".join(values)) == " ".join(f"[redacted:S{number}]" for number in range(60))


def test_secrets_can_be_added_later() -> None:
    hide = Redactor([])
    assert hide.text("abcdefgh") == "abcdefgh"
    hide.add(Secret("abcdefgh", "key"))
    assert hide.text("abcdefgh") == MARKER


@pytest.mark.parametrize("value", ["x" * (MIN_BYTES - 1), "ü" * 2])
def test_a_short_secret_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(
        InvalidParams, match="cannot redact secret key: it is shorter than 6 bytes"
    ) as refused:
        redactor(value)
    assert value not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "name"), [("redacted", "key"), ("api_key", "api_key"), ("other_name", "key")]
)
def test_a_value_that_its_own_marker_would_show_is_refused(value: str, name: str) -> None:
    hide = Redactor([Secret("unrelated value", "other_name")])
    with pytest.raises(InvalidParams, match=f"cannot redact secret {name}"):
        hide.add(Secret(value, name))
    assert hide.text("unrelated value") == "[redacted:other_name]"


def test_log_records_are_hidden_with_arguments_extras_and_traceback() -> None:
    stream, logger = logging_to_stream("%(message)s %(extra)s")
    try:
        raise RuntimeError("failed with hunter-22")
    except RuntimeError:
        logger.exception("login %s", "hunter-22", extra={"extra": "of hunter-22"}, stack_info=True)
    assert stream.getvalue().startswith("login [redacted:key] of [redacted:key]\nTraceback")
    assert "RuntimeError: failed with [redacted:key]" in stream.getvalue()
    assert "Stack (most recent call last)" in stream.getvalue()
    assert "hunter-22" not in stream.getvalue()


def test_a_log_call_with_wrong_arguments_does_not_print_them(capsys: pytest.CaptureFixture[str]) -> None:
    stream, logger = logging_to_stream("%(message)s")
    logger.warning("one %d", "hunter-22")
    assert stream.getvalue().startswith("cannot format a log message: correct its arguments at ")
    assert capsys.readouterr().err == ""


def logging_to_stream(layout: str) -> tuple[io.StringIO, logging.Logger]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(layout))
    handler.addFilter(RedactingFilter(redactor("hunter-22")))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return stream, logger
