"""Streams of the event log, as the HTTP API shows them; docs/streams.md describes the SSE body."""

from typing import Literal

import msgspec

from legation.wire.api.shape import Answer


class StreamSummary(Answer):
    """`firstSeq` is where the newest of its generations begins."""

    name: str
    state: Literal["open", "closed"]
    first_seq: int
    head: int
    generations: int = 1


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; `raw` is what its agent sent, byte for byte."""

    seq: int
    at: int
    type: str
    raw: msgspec.Raw
    native: str = ""
    native64: str = ""  # where the agent's own line is not UTF-8
