"""Bodies that do not come."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request

from legation.errors import InvalidParams, TooLarge
from legation.server.fs.upload import PIECE, pieces


def request(messages: Sequence[bytes], *, ends: bool = True) -> Request:
    left = list(messages)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left) or not ends}

    return Request({"type": "http", "headers": []}, receive)


async def test_small_messages_come_together_and_large_ones_as_they_are() -> None:
    body = [b"1" * 1000] * 300 + [b"2" * PIECE, b"", b"3"]
    found = [piece async for piece in pieces(request(body), 1 << 20)]
    assert b"".join(found) == b"".join(body)
    assert len(found) == 3


@pytest.mark.parametrize(("silence", "longest"), [(0.01, 60.0), (60.0, 0.01)])
async def test_who_stops_sending_is_told(silence: float, longest: float) -> None:
    arriving = pieces(request([b"1"], ends=False), 100, silence=silence, longest=longest)
    with pytest.raises(InvalidParams, match="did not arrive in time"):
        await anext(arriving)


async def test_what_is_too_large_is_refused_where_it_becomes_so() -> None:
    with pytest.raises(TooLarge):
        await anext(pieces(request([b"1" * 60, b"1" * 60], ends=False), 100, silence=5))
