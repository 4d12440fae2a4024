"""Streams of the event log, as the HTTP API shows them; docs/streams.md describes the SSE body.

Apart from `server`, which every command of the CLI loads: events are not loaded for that.
"""

from typing import Literal

import msgspec

from legation.wire.api.shape import ResponseBody
from legation.wire.events import WHOLE, Span


class StreamSummary(ResponseBody):
    """`firstSeq` is where the newest of its generations begins."""

    name: str
    state: Literal["open", "closed"]
    first_seq: int
    head: int
    generations: int = 1


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; `raw` is what its agent sent, byte for byte. With `update`, it is the params of `session/update`, and
    so many bytes of it stand before and behind the update; without, all of it is the payload."""

    seq: int
    at: int
    type: str
    raw: msgspec.Raw
    native: str = ""
    native64: str = ""  # where the agent's own line is not UTF-8, or is long
    update: Span = WHOLE
