import pytest

from legation.host.requests.handlers import ApproveAll, Approver, DenyAll
from legation.wire.acp.methods import CancelledOutcome, PermissionOption, SelectedOutcome
from legation.wire.action import Action, Ask, Decision, Outcome, choose_option, permission_outcome

KINDS = ("allow_always", "allow_once", "reject_always", "reject_once", "_other")


def options(*kinds: str) -> tuple[PermissionOption, ...]:
    return tuple(PermissionOption(option_id=f"id-{kind}", name=kind, kind=kind) for kind in kinds)


@pytest.mark.parametrize(
    ("outcome", "chosen"),
    [
        ("approved", "id-allow_once"),
        ("denied", "id-reject_once"),
        ("expired", "id-reject_once"),
        ("superseded", None),
        ("cancelled", None),
    ],
)
def test_only_once_options_are_chosen(outcome: Outcome, chosen: str | None) -> None:
    assert choose_option(options(*KINDS), outcome) == chosen


def test_an_approval_never_becomes_always() -> None:
    always = options("allow_always", "reject_once")
    assert choose_option(always, "approved") is None
    yes = Decision("approved", by="me", reason="fine", option_id="id-allow_always")
    assert permission_outcome(always, yes) == SelectedOutcome(option_id="id-reject_once")
    assert permission_outcome(options("allow_always"), yes) == CancelledOutcome()


def test_always_is_pressed_by_a_grant_of_ours_and_only_where_there_is_no_once() -> None:
    granted = Decision("approved", by="me", reason="fine", grant="grt_1")
    always = options("allow_always", "reject_once")
    assert permission_outcome(always, granted) == SelectedOutcome(option_id="id-allow_always")
    assert permission_outcome(options(*KINDS), granted) == SelectedOutcome(option_id="id-allow_once")
    denied = Decision("denied", by="me", reason="no", grant="grt_1")
    assert permission_outcome(options("allow_always"), denied) == CancelledOutcome()


def test_a_refusal_may_be_for_always_where_nothing_else_is_offered() -> None:
    assert choose_option(options("allow_once", "reject_always"), "denied") == "id-reject_always"


def test_a_refusal_without_a_reject_option_cancels() -> None:
    no = Decision("denied", by="me", reason="no")
    assert permission_outcome(options("allow_once"), no) == CancelledOutcome()


def test_a_preferred_option_counts_only_if_it_says_the_same() -> None:
    offered = (
        *options("allow_once", "reject_once"),
        PermissionOption(option_id="second", name="Yes, and format", kind="allow_once"),
    )
    assert choose_option(offered, "approved", "second") == "second"
    assert choose_option(offered, "denied", "second") == "id-reject_once"
    assert choose_option(offered, "approved", "gone") == "id-allow_once"


@pytest.mark.parametrize("outcome", ["superseded", "cancelled"])
def test_the_end_of_a_turn_is_told_as_cancelled(outcome: Outcome) -> None:
    decision = Decision(outcome, by="host", reason="the turn ended")
    assert permission_outcome(options(*KINDS), decision) == CancelledOutcome()


@pytest.mark.parametrize(
    ("approver", "outcome", "by"),
    [(DenyAll(), "denied", "unattended"), (ApproveAll(), "approved", "flag --yes")],
)
async def test_default_approvers(approver: Approver, outcome: Outcome, by: str) -> None:
    ask = Ask(
        id="perm_1",
        session_id="ses_1",
        action=Action(agent="a", tool="t"),
        options=options(*KINDS),
        title="Write a.py",
        asked_at=1,
    )
    decision = await approver.decide(ask)
    assert (decision.outcome, decision.by) == (outcome, by)
    assert decision.reason
