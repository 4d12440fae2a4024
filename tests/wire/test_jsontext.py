import json
import math

import pytest
from hypothesis import given
from tests.wire.samples import json_values

from legation.wire import jsontext


@given(json_values)
def test_what_is_written_is_read_the_same(value: object) -> None:
    raw = jsontext.write(value)
    assert jsontext.read(raw) == value
    assert b"\n" not in raw


@given(json_values)
def test_what_the_standard_library_writes_is_read_the_same(value: object) -> None:
    assert jsontext.read(json.dumps(value).encode()) == value


@pytest.mark.parametrize("raw", [b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"", b"{", b"[" * 200_000])
def test_what_cannot_be_held_without_loss_is_an_error(raw: bytes) -> None:
    with pytest.raises(jsontext.READ_ERRORS):
        jsontext.read(raw)


def test_bytes_that_are_no_utf8_are_read_with_replacement() -> None:
    assert jsontext.read(b'"a\xffb"') == "a\ufffdb"


def test_the_largest_double_is_still_read() -> None:
    assert jsontext.read(b"1.7976931348623157e308") == math.nextafter(math.inf, 0)
