"""Reading and writing JSON text that strict tools refuse.

Agents written in JavaScript can emit lone surrogates, and numbers can be larger than 64 bits. msgspec is
tried first; the standard library takes what msgspec will not. Only what neither can hold without loss
(NaN, 1e999, numbers of thousands of digits, nesting beyond the stack) counts as unreadable.
"""

import json
import math

import msgspec

READ_ERRORS = (ValueError, RecursionError)  # msgspec's errors and UnicodeDecodeError are ValueErrors


def read(raw: bytes) -> object:
    """The value of a JSON text; raises one of READ_ERRORS when it cannot be held without loss."""
    try:
        value: object = msgspec.json.decode(raw)
    except ValueError:
        value = read_leniently(raw)
    return value


def read_leniently(raw: bytes) -> object:
    """As `read`, without trying msgspec. Bytes that are no UTF-8 are read as U+FFFD."""
    text = raw.decode("utf-8", "replace")
    value: object = json.loads(text, parse_float=_finite, parse_constant=_refuse)
    return value


def write(value: object) -> bytes:
    """Compact JSON of builtins or structs; lone surrogates are written as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("cannot read a number beyond the range of a double")
    return number


def _refuse(constant: str) -> object:
    raise ValueError(f"cannot read {constant}: it is not JSON")
