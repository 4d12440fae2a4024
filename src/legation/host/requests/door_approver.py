"""The permissions of a host's sessions, decided at the door.

INV-A1  A permission's id is its approval's id.
INV-A2  Whoever asks does not answer: the requester of a session has no say in its approvals.
INV-A3  When nobody waits for the decision any more (the turn was cancelled, the agent is gone, the host's own time is
        over) the approval is cancelled: an answer that comes later is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from legation.approvals.admit import Evaluated
from legation.approvals.door import Door
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.rules import UnaskedWord
from legation.approvals.request import DoorRequest, DoorResult
from legation.errors import Forbidden, InvalidParams, LegationError, NotFound
from legation.host.requests.handlers import Prepared, Unasked
from legation.wire.action import Ask, Decision, offers_only_always
from legation.wire.principal import Principal

KEPT: Final = 1_000  # sessions whose folders are remembered as they were when it first asked

Decide: TypeAlias = Callable[..., Awaitable[Decision]]  # of an ask, and of what it was judged to be
_ASKED: Final = ("supervisor", "human_approval")

logger = logging.getLogger("legation.host")


class DoorApprover:
    """Approver of a host, at the door, which asks as `requester`. `timeout` is the host's own bound on waiting, in
    seconds; `unasked` what happens to a turn that did something unasked where no policy says so; with `approves` whoever
    would be asked has said yes beforehand."""

    def __init__(
        self,
        door: Door,
        requester: Principal,
        *,
        timeout: float | None = None,
        unasked: UnaskedWord = "stop",
        approves: bool = False,
    ) -> None:
        self._approves = approves
        self._unasked: UnaskedWord = unasked
        self._door = door
        self._requester = requester
        self._timeout = timeout
        self._facts: dict[str, Facts] = {}  # by session
        self._told_closing = False

    async def decide(self, ask: Ask, judged: Evaluated | None = None) -> Decision:
        try:
            ruling = await self._door.decide(self._request(ask), judged)
        except LegationError as error:
            # An agent may ask in a loop until it is stopped: that is told once.
            told_before, self._told_closing = self._told_closing, self._door.closing
            return refusal(error, told=told_before)
        if not ruling.passed or ruling.action.params == ask.action.params:
            return ruling.decision
        return replace(ruling.decision, params=ruling.action.params)  # somebody changed them

    async def prepare(self, ask: Ask, decide: Decide | None = None) -> Prepared:
        """Judge it as it is decided right after, by `decide` or here, with the time that its rule gives it."""
        judged, ends = None, None
        with suppress(LegationError):  # what cannot be judged has no time; deciding it says so
            judged = await self._door.evaluate(self._request(ask))
            ends = self._door.expires_at(judged, ask.asked_at)
        return Prepared(ends, partial(decide or self.decide, judged=judged))

    async def rule(self, ask: Ask, judged: Evaluated | None = None) -> DoorResult:
        """Cancelling it takes the question back (INV-A3)."""
        return await self._door.decide(self._request(ask), judged)

    async def unasked(self, ask: Ask) -> Unasked:
        """Judge what was done unasked. What cannot be judged was not allowed."""
        try:
            request = replace(self._request(ask), approval_id=None)
            if self._approves and (await self._door.preview(request)).action in _ASKED:
                return Unasked("allow", "legation", "approved beforehand")
            found, ends = await self._door.record_unasked(request, self._unasked)
        except LegationError as error:
            logger.error("what was done unasked could not be judged: %s", error)
            return Unasked(
                "deny", "legation", f"it could not be judged ({error.code})", self._unasked == "stop"
            )
        if found.grant is not None:
            return Unasked("allow", found.policy_rule, "a grant lets it pass")
        return Unasked(found.action, found.policy_rule, found.reason, ends)

    def _request(self, ask: Ask) -> DoorRequest:
        if ask.cwd is None:
            raise NotFound(
                f"cannot decide for session {ask.session_id}: there is none; ask in one that is open"
            )
        # One for each session: its folders stay what they were, whatever link an agent puts there later.
        facts = self._facts.pop(ask.session_id, None)
        if facts is None or (facts.cwd, facts.home) != (ask.cwd, ask.home):
            facts = Facts(ask.cwd, ask.cwd, ask.home)
        self._facts[ask.session_id] = facts  # the last one again
        if len(self._facts) > KEPT:
            del self._facts[next(iter(self._facts))]
        return DoorRequest(
            principal=self._requester,
            action=ask.action,
            facts=facts,
            approval_id=ask.id,
            session_id=ask.session_id,
            in_session=True,
            turn_id=ask.turn,
            tool_call_id=ask.tool_call_id,
            editable=ask.editable,
            diffs=ask.diffs,
            timeout=self._timeout,
            expires_at=ask.expires_at,
            only_always=offers_only_always(ask.options),
        )


def refusal(error: LegationError, *, told: bool = False) -> Decision:
    """Refuse what cannot be judged. The agent hears why, unless the fault is ours; then the log does, unless it was told."""
    if isinstance(error, InvalidParams | NotFound | Forbidden):
        return Decision("denied", "legation", error.message, message=error.message)
    if not told:
        logger.error("a permission was refused, for it could not be decided: %s", error)
    return Decision(
        "denied", "legation", f"it could not be decided ({error.code})", message="not decided: try later"
    )
