"""The id of a request: the caller's own where it is harmless, else a new one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from legation.clock import Clock
from legation.ids import new_id

_HARMLESS: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def request_id(headers: Mapping[bytes, bytes], clock: Clock) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _HARMLESS.fullmatch(given):
        return given.decode("ascii")
    return new_id("req", now_ms=clock.now_ms())
