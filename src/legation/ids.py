"""Ids: a prefix that says what it is, then 48 bits of time and 80 of chance, so that text order is time order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u to misread
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)  # ten bits at a time: half the steps
_SHIFTS: Final = tuple(range(120, -1, -10))  # 26 characters
_CHANCE_BYTES: Final = 10
_CHANCE_BITS: Final = 80

_lock = threading.Lock()
_last = (0, 0)  # (millisecond, chance) of the id made last


def new_id(prefix: str, *, now_ms: int | None = None, random: Callable[[int], bytes] = os.urandom) -> str:
    """Make an id. Within one millisecond of one process later ids sort later; no id tells how many were made before it."""
    global _last
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with _lock:
        if ms == _last[0]:
            # A step by chance, not by one: forked processes share `_last` and must not make the same ids.
            chance = _last[1] + 1 + int.from_bytes(random(4))
        else:
            chance = int.from_bytes(random(_CHANCE_BYTES)) >> 1  # the upper half is room for steps
        _last = (ms, chance)
    number = ms << _CHANCE_BITS | chance
    return f"{prefix}_{''.join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])}"
