"""What a server that was killed owes its client: answers to what it had taken, and an end to what it had asked.

INV-U1  A request that was taken is answered once: by the server that took it, or by the one after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from legation.agents.messages import id_key, read_message
from legation.errors import Unavailable
from legation.server.acp.failures import rpc_error
from legation.server.acp.log import MESSAGE, Taken
from legation.server.acp.messages import error_line, key_of, kind_of, notification_line
from legation.store.stream import Stream
from legation.wire.acp.rpc import CANCEL_REQUEST

# How the many begin among the messages that neither ask nor answer: notifications, as we write them.
_TELLS: Final = b'{"jsonrpc":"2.0","method":'
_WHY: Final = "cannot answer: the server ended before it could; see what the session says, then ask again"


async def last_words(stream: Stream, taken: Sequence[Taken], asks: int | None = None) -> list[bytes]:
    """Nobody reads or writes the stream meanwhile."""
    owed = {id_key(each.id.encode()): each for each in taken}
    # What the client was asked, answered or not: its answers are not in the log, and nobody waits for one any more.
    asked: list[msgspec.Raw] = []
    since = [each.after for each in taken] if asks is None else [*(each.after for each in taken), asks]
    after = min(since, default=stream.head)
    async for batch in stream.subscribe(after, follow=False).batches():
        for event in batch:
            if event.type != MESSAGE or event.raw.startswith(_TELLS):
                continue
            message = read_message(event.raw)
            if message is None:
                continue
            if kind_of(message) == "request":
                asked.append(message.id)
            elif (
                found := owed.get(key_of(message))
            ) and event.seq > found.after:  # else of an older one of that id
                del owed[key_of(message)]
    if not owed and asks is None:
        return []
    withdrawn = [notification_line(CANCEL_REQUEST, {"requestId": each}) for each in asked]
    error = rpc_error(Unavailable(_WHY))
    return [*withdrawn, *(error_line(each.id.encode(), error) for each in owed.values())]
