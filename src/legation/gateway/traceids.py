"""Which trace id a call gets, where its caller proposes one.

INV-T1  A trace id names one call: the steps and the sealed arguments of two calls are never joined.

A W3C trace spans many calls, so an id that is taken is no mistake of whoever sends `Traceparent`: its next call gets
a new one. `X-Trace-Id` names this very call: a second one with it is refused, which is how a caller that does not
know whether its request arrived can send it again.
"""

from __future__ import annotations

from typing import Final

from legation.approvals.trace import new_trace_id
from legation.approvals.trace_entries import steps_of
from legation.errors import Conflict, InvalidParams
from legation.gateway.traceparent import TRACE_ID, trace_id_of
from legation.store.database.transaction import Database

REMEMBERED: Final = 10_000  # more than begin in the time that it takes to put a call on record


class TraceIds:
    """Of one server. The newest are remembered: a call that begins is not on record yet, nor is it if its caller left."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], None] = {}

    async def take(self, database: Database, workspace: str, own: str | None, parent: str | None) -> str:
        """`own` and `parent` are the headers `X-Trace-Id` and `Traceparent`."""
        if own is not None and not TRACE_ID.fullmatch(own):
            raise InvalidParams(
                "cannot use X-Trace-Id: it is not 32 hexadecimal digits in lower case, or all zero; correct it, or "
                "leave it out",
                {"path": "header.X-Trace-Id"},
            )
        wanted = own or (trace_id_of(parent) if parent else None)
        if wanted is None:
            return new_trace_id()
        is_new = self._remember(
            (workspace, wanted)
        )  # before anything is awaited: two of the same may come at once
        if is_new and not await database.read(steps_of, workspace, wanted):
            return wanted
        if own is None:
            return new_trace_id()
        raise Conflict(
            "cannot call the tool: a call with this X-Trace-Id was made; look at /traces for what became of it, or give "
            "a new id to ask again",
            {"trace_id": own},
        )

    def _remember(self, key: tuple[str, str]) -> bool:
        """Whether it is new."""
        if key in self._newest:
            return False
        self._newest[key] = None
        if len(self._newest) > REMEMBERED:
            del self._newest[next(iter(self._newest))]
        return True
