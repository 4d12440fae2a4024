"""One question about one action, and its answer.

INV-W4  Only *once* options are ever chosen: "always" is a Legation grant, so that later calls still meet
        policy and trace. Two exceptions: `reject_always` where an agent offers no `reject_once`; and `allow_always`
        where it offers no `allow_once` and a grant of ours covers the tool, whatever its arguments.
INV-W5  Silence is never consent: without an answer the outcome is `expired`, and that is a refusal.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import msgspec

from legation.wire.acp.methods import CancelledOutcome, PermissionOption, PermissionOutcome, SelectedOutcome
from legation.wire.acp.updates import Diff
from legation.wire.action import Action, RuleAction

Outcome = Literal["approved", "denied", "expired", "superseded", "cancelled"]

_KINDS_IN_ORDER: dict[Outcome, tuple[str, ...]] = {
    "approved": ("allow_once",),
    "denied": ("reject_once", "reject_always"),
    "expired": ("reject_once", "reject_always"),
    "superseded": (),
    "cancelled": (),
}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is the permission's and the approval's id alike. Times are epoch milliseconds."""

    id: str
    session_id: str
    action: Action
    options: tuple[PermissionOption, ...]
    title: str
    asked_at: int
    expires_at: int | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    diffs: tuple[Diff, ...] = ()  # what the agent says it would change
    editable: bool = False  # it would act on other arguments, if it is answered with some


class Decision(msgspec.Struct, frozen=True):
    """`by` is who decided, `reason` why, `message` what the agent is told where its protocol can carry it.

    `params` are the arguments that were approved, where they are others than were asked about. `grant` is the one of
    ours that covers the tool, whatever its arguments: without it no agent is told `always`."""

    outcome: Outcome
    by: str
    reason: str
    option_id: str | None = None
    message: str | None = None
    params: Mapping[str, object] | None = None
    grant: str | None = None
    by_name: str | None = None  # of a person, where `by` is an id


class Unasked(msgspec.Struct, frozen=True):
    """The rules' word on something that an agent did and asked nobody about; whether that ends its turn."""

    policy: RuleAction
    rule: str
    reason: str
    ends: bool = False


class Approver(Protocol):
    async def decide(self, ask: Ask) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An approver's findings about an ask before it is told to anybody: `expires_at` is when there will be no answer
    any more, in epoch milliseconds, None where it cannot tell. `decide` goes on from there, with the ask as it was told."""

    expires_at: int | None
    decide: Callable[[Ask], Awaitable[Decision]]


@runtime_checkable
class Timekeeper(Protocol):
    """An approver that keeps the time of what it is asked itself."""

    async def prepare(self, ask: Ask) -> Prepared:
        """Called once, before the permission is on record; that keeps its place among the updates meanwhile."""


@runtime_checkable
class RuledApprover(Approver, Protocol):
    """One that has rules, and can say what they would have said."""

    async def unasked(self, ask: Ask) -> Unasked:
        """Judge what was done without asking, and trace what would not simply have been allowed."""


class DenyAll:
    """Nobody is there to ask."""

    async def decide(self, ask: Ask) -> Decision:  # noqa: ARG002 - the answer is the same for all
        return Decision(outcome="denied", by="unattended", reason="unattended: nobody is there to ask")


class ApproveAll:
    """The owner said yes beforehand."""

    async def decide(self, ask: Ask) -> Decision:  # noqa: ARG002 - the answer is the same for all
        return Decision(outcome="approved", by="flag --yes", reason="approved beforehand with --yes")


def offers_only_always(options: Iterable[PermissionOption]) -> bool:
    """Whether a yes to it is a yes to what comes after, too."""
    kinds = {option.kind for option in options}
    return "allow_always" in kinds and "allow_once" not in kinds


def choose_option(
    options: Iterable[PermissionOption],
    outcome: Outcome,
    preferred: str | None = None,
    *,
    granted: bool = False,
) -> str | None:
    """The option that says `outcome` to the agent; None where it offers none that may be used.

    None for `approved` means that the agent offers only "always", and that none of ours was `granted`: the caller
    denies instead. `preferred` is taken where the agent offers several options of the right kind.
    """
    offered = tuple(options)
    last = ("allow_always",) if granted and outcome == "approved" else ()
    for kind in (*_KINDS_IN_ORDER[outcome], *last):
        fitting = [option.option_id for option in offered if option.kind == kind]
        if fitting:
            return preferred if preferred in fitting else fitting[0]
    return None


def permission_outcome(options: Iterable[PermissionOption], decision: Decision) -> PermissionOutcome:
    """The answer to the agent: an approval that cannot be given once, and that no grant covers, is a refusal."""
    offered = tuple(options)
    granted = decision.grant is not None
    chosen = choose_option(offered, decision.outcome, decision.option_id, granted=granted)
    if chosen is None and decision.outcome == "approved":
        chosen = choose_option(offered, "denied")
    return CancelledOutcome() if chosen is None else SelectedOutcome(option_id=chosen)
