"""The stream of changes: every change of an approval as an event of its workspace's stream `approvals`.

It is appended after the commit of the change. A crash between the two loses the event, not the change: whoever
follows reads the list first, and trusts the approval over the event.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

from legation.approvals.answers import why_ended
from legation.approvals.approval import Approval
from legation.approvals.trace import StepKind
from legation.errors import LegationError
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.approvalstream import ApprovalChanged
from legation.wire.codec import draft

NAME: Final = "approvals"
LAST_WORDS: Final = 5.0  # seconds: the disk's time at the end

logger = logging.getLogger("legation.approvals")


class Changes:
    """`async with`: owns the task that appends."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._queue: asyncio.Queue[tuple[Approval, StepKind]] = asyncio.Queue()
        self._streams: dict[str, Stream] = {}  # held: the log would look for it on the disk each time

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._append(), name="legation-approval-changes")
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self._queue.join()
        except TimeoutError:
            logger.warning("some changes of approvals did not reach their stream")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def __call__(self, approval: Approval, happened: StepKind) -> None:
        self._queue.put_nowait((approval, happened))

    async def open(self, workspace: str) -> None:
        """So that the stream can be followed before anything happened."""
        await self._log.stream(NAME, workspace)

    async def _append(self) -> None:
        while True:
            approval, happened = await self._queue.get()
            try:
                if (stream := self._streams.get(approval.workspace_id)) is None:
                    stream = await self._log.stream(NAME, approval.workspace_id)
                    self._streams[approval.workspace_id] = stream
                stream.append([draft(changed(approval, happened))])
            except LegationError as error:
                logger.warning("a change of an approval did not reach its stream: %s", error.code)
            finally:
                self._queue.task_done()


def changed(approval: Approval, happened: StepKind) -> ApprovalChanged:
    return ApprovalChanged(
        id=approval.id,
        happened=happened.value,  # type: ignore[arg-type]
        status=approval.status.value,
        needs=approval.needs,
        agent=approval.agent,
        tool=approval.tool,
        kind=approval.kind,
        rule=approval.policy_rule,
        group=approval.group_key,
        trace_id=approval.trace_id,
        created_at=approval.created_at,
        expires_at=approval.expires_at,
        injection_risk=approval.injection_risk,
        session_id=approval.session_id,
        claimed_by=approval.claimed_by,
        claimed_until=approval.claimed_until,
        resolved_by=approval.resolved_by,
        replaces=approval.replaces,
        replaced_by=approval.replaced_by,
        why=why_ended(approval.status, approval.reason),
    )
