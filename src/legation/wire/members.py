"""The members of a JSON object as bytes, found without reading what is inside them.

For texts that no parser takes: nested beyond the stack, or with escapes that are half a character. It walks
the brackets and strings once, with no recursion; it does not prove that the text is JSON.
"""

import json
import re

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]', re.DOTALL)


def members(raw: bytes) -> dict[str, bytes]:
    """Key -> the bytes of its value, for an object; raises ValueError where the brackets do not add up."""
    text = raw.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise ValueError("not a JSON object")
    found: dict[str, bytes] = {}
    depth, start, key = 0, 0, None
    for token in _TOKEN.finditer(text):
        first = text[token.start() : token.start() + 1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        if depth == 1 and first == b":" and key is None:
            key = json.loads(text[start : token.start()].lstrip(b"{, \t\r\n"))
            start = token.end()
        elif key is not None and ((depth == 1 and first == b",") or depth == 0):
            found[str(key)] = text[start : token.start()].strip()
            start, key = token.start(), None
        if depth == 0 and token.end() != len(text):
            raise ValueError("text after the object")
    if depth:
        raise ValueError("brackets are left open")
    return found
