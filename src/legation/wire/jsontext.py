"""Reading and writing JSON text that strict tools refuse.

Agents written in JavaScript can emit lone surrogates, and numbers can be larger than 64 bits. msgspec is
tried first; the standard library takes what msgspec will not. Only what neither can hold without loss
(NaN, 1e999, numbers of thousands of digits, nesting beyond the stack) counts as unreadable.
"""

import json
import math
import re
from typing import Final, NamedTuple

import msgspec

READ_ERRORS = (ValueError, RecursionError)  # msgspec's errors and UnicodeDecodeError are ValueErrors


def read(raw: bytes) -> object:
    """The value of a JSON text; raises one of READ_ERRORS when it cannot be held without loss."""
    try:
        value: object = msgspec.json.decode(raw)
    except ValueError:
        value = read_leniently(raw)
    return value


def read_object(raw: bytes) -> dict[str, object]:
    """The members of an object; none where it is no object, or cannot be read."""
    try:
        value = read(raw)
    except READ_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}


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


def what_is_wrong(error: msgspec.ValidationError) -> str:
    """Describe the error without the value, which may be part of a prompt."""
    text = str(error)
    if not text.startswith("Invalid value"):
        return text
    _, at, where = text.rpartition(" - at ")
    return f"Invalid value{at}{where}" if at else "Invalid value"


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("cannot read a number beyond the range of a double")
    return number


def _refuse(constant: str) -> object:
    raise ValueError(f"cannot read {constant}: it is not JSON")


ODD_BYTES: Final = 64 * 1024  # of what no parser takes, and is read by its tokens
MOST_TOKENS: Final = 100_000  # a fifth of a second: a text made of brackets alone must not hold up the loop

_TOKEN = re.compile(
    rb"""[ \t\r\n]*+(?:
    (?P<string>"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")
    |(?P<scalar>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)
    |(?P<mark>[\[\]{},:])
    )[ \t\r\n]*+""",
    re.VERBOSE,
)

# What may come next, and after that. `item` and `key` follow a comma, `item?` and `key?` an opening bracket.
_NEXT: Final = {
    **{(state, kind): "end" for state in ("item", "item?") for kind in ("string", "scalar")},
    **{(state, "{"): "key?" for state in ("item", "item?")},
    **{(state, "["): "item?" for state in ("item", "item?")},
    **{(state, "string"): "colon" for state in ("key", "key?")},
    ("colon", ":"): "item",
    ("key?", "}"): "end",
    ("item?", "]"): "end",
    ("end", "}"): "end",
    ("end", "]"): "end",
}
_OPENED_BY: Final = {"}": "{", "]": "["}


class _Token(NamedTuple):
    kind: str
    start: int
    end: int


def members(raw: bytes) -> dict[str, bytes]:
    """Key -> the bytes of its value, for an object; raises ValueError for any other text.

    For texts that no parser takes: nested beyond the stack, or with escapes that are half a character. It walks
    the tokens once, with no recursion, and holds the text to the grammar: what comes out is JSON."""
    found: dict[str, bytes] = {}
    opened: list[str] = []
    state, key, value_start = "item", "", 0
    position = 0
    for _ in range(MOST_TOKENS):
        token = _token(raw, position)
        if len(opened) == 1:
            if token.kind in (",", "}") and state == "end":
                found[key] = raw[value_start : token.start].strip()
            elif token.kind == "string" and state != "item":
                key = json.loads(raw[token.start : token.end])
            elif token.kind == ":":
                value_start = token.end
        state = _after(state, token.kind, opened)
        position = token.end
        if not opened:
            return _whole(found, raw, token)
    raise ValueError("too many tokens")


def _token(raw: bytes, position: int) -> _Token:
    match = _TOKEN.match(raw, position)
    if match is None:
        raise ValueError("not JSON")
    group = match.lastgroup or ""
    kind = match[group].decode() if group == "mark" else group
    return _Token(kind, match.start(group), match.end())


def _after(state: str, kind: str, opened: list[str]) -> str:
    if kind in _OPENED_BY and (not opened or opened.pop() != _OPENED_BY[kind]):
        raise ValueError("brackets do not match")
    if state == "end" and kind == "," and opened:
        return "key" if opened[-1] == "{" else "item"
    if (state, kind) not in _NEXT:
        raise ValueError("not JSON")
    if kind in ("{", "["):
        opened.append(kind)
    return _NEXT[state, kind]


def _whole(found: dict[str, bytes], raw: bytes, last: _Token) -> dict[str, bytes]:
    if last.kind != "}" or last.end != len(raw):
        raise ValueError("not one JSON object")
    return found


_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_members(raw: bytes) -> dict[str, bytes]:
    """As `members`, at the speed of a parser where one takes the text; nothing for what is no object, or odd and long."""
    try:
        return {name: bytes(value) for name, value in _decode(raw).items()}
    except (ValueError, RecursionError):
        pass
    try:
        return members(raw) if len(raw) <= ODD_BYTES else {}
    except ValueError:
        return {}


def renamed(params: bytes, session_id: str) -> bytes:
    """Params with our name of the session for the agent's, where they name one."""
    found = read_members(params) if params else {}
    if "sessionId" not in found:
        return one_line(params) or b"{}"
    told = {**found, "sessionId": write(session_id)}
    pairs = [b"%b:%b" % (write(name), value) for name, value in told.items()]
    return one_line(b"{%b}" % b",".join(pairs))


def one_line(text: bytes) -> bytes:
    """An agent may have put its answer into several lines; between tokens a space does as well."""
    return text.replace(b"\n", b" ") if b"\n" in text else text
