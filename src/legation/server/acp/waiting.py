"""Approvals of sessions that wait for somebody: which of them a person who is connected should be asked.

What needs a person is asked at once. What a supervisor may decide is asked at once where none is there, and else when
it was escalated: a person is not bothered with what somebody else is about to decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from legation.approvals.approval import Approval, Status
from legation.approvals.attendance import Attendance
from legation.approvals.inbox import Inbox
from legation.approvals.trace import StepKind
from legation.clock import Clock
from legation.errors import LegationError

logger = logging.getLogger("legation.acp")


class Waiting:
    """`tell` is called with each approval that is to be asked."""

    def __init__(
        self,
        attendance: Attendance,
        clock: Clock,
        supervisor_wait_ms: int,
        tell: Callable[[Approval], None],
    ) -> None:
        self._attendance = attendance
        self._clock = clock
        self._supervisor_wait_ms = supervisor_wait_ms
        self._tell = tell
        self._wanted: dict[str, Approval] = {}
        self._looking: set[asyncio.Task[None]] = set()

    def listen(self, inbox: Inbox) -> None:
        inbox.on_change(self._changed)

    def __contains__(self, approval_id: str) -> bool:
        return approval_id in self._wanted

    def _changed(self, approval: Approval, happened: StepKind) -> None:
        if approval.session_id is None:
            return
        if approval.status is not Status.PENDING:
            self._wanted.pop(approval.id, None)
        elif approval.needs == "person":
            self._want(approval)
        elif happened is StepKind.PROPOSED:
            task = asyncio.create_task(self._look(approval))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look(self, approval: Approval) -> None:
        try:
            last = await self._attendance.last(approval.workspace_id, approval.tool)
        except LegationError as error:  # a supervisor is asked in any case, and a person if none answers
            logger.warning("cannot tell whether a supervisor is there: %s", error.code)
            return
        if self._clock.now_ms() - last > self._supervisor_wait_ms:
            self._want(approval)

    def _want(self, approval: Approval) -> None:
        if approval.id not in self._wanted:
            self._wanted[approval.id] = approval
            self._tell(approval)

    async def stop(self) -> None:
        for task in self._looking:
            task.cancel()
        if self._looking:
            await asyncio.wait(self._looking)
