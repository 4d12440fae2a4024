"""An approval is bound to one action, answered once, used once, by those who may."""

from typing import Any

import msgspec
import pytest
from tests.approvals.installation import (
    AGENT,
    HOLDER,
    MINUTE,
    NO,
    NOW,
    PERSON,
    SECOND,
    SUPERVISOR,
    VERSION,
    WAITER,
    YES,
    Installation,
    principal,
    proposal,
    write_file,
)

from legation.approvals import listing
from legation.approvals.approval import (
    LONGEST_WAIT_MS,
    MIN_USE_MS,
    TRANSITIONS,
    ApprovalAnswer,
    ApprovalState,
    Waiter,
)
from legation.approvals.transitions import expire_due, get, supersede
from legation.errors import AlreadyAnswered, Conflict, Forbidden, InvalidParams, NotFound
from legation.wire.action import Action


async def test_what_was_asked_is_on_record_without_its_arguments(installation: Installation) -> None:
    approval = await installation.ask(session_id="ses_1", turn_id="trn_1", tool_call_id="call_1")
    assert approval == await installation.get(approval)
    assert (approval.status, approval.needs, approval.verdict) == (
        ApprovalState.PENDING,
        "supervisor",
        "supervisor",
    )
    assert approval.action_digest == write_file().digest(VERSION)
    assert approval.argument_names == "content,path"
    assert approval.argument_bytes == len('{"path":"/p/main.go","content":"package main"}')
    (view,) = await listing.views(
        installation.database, installation.sealer, "local", [approval], NOW + 30_000
    )
    assert view.params == write_file().params
    assert (view.remaining, view.created_at) == ("4m30s", "2023-11-14T22:13:20Z")
    assert view.injection_risk is False


async def test_an_answer_is_attributed_to_the_credential(installation: Installation) -> None:
    approval = await installation.ask()
    said = ApprovalAnswer(approve=True, claim="human:alice", reasoning="fine", confidence=0.9)
    resolved = await installation.answer(approval, said, SUPERVISOR)
    assert (resolved.status, resolved.resolved_by) == (ApprovalState.APPROVED, "agent:supervisor")
    assert (resolved.resolver_level, resolved.confidence) == (1, 0.9)


async def test_d9_a_claimed_name_is_kept_as_a_claim_and_not_believed(installation: Installation) -> None:
    approval = await installation.ask()
    await installation.answer(approval, ApprovalAnswer(approve=True, claim="human:alice"), SECOND)
    (entry,) = await installation.entries()
    assert entry.approved_by == "token:tok_2"


async def test_the_second_answer_is_refused_whatever_it_says(installation: Installation) -> None:
    for first in (YES, NO):
        approval = await installation.ask()
        resolved = await installation.answer(approval, first)
        for second in (YES, NO):
            with pytest.raises(AlreadyAnswered):
                await installation.answer(approval, second, SUPERVISOR)
        assert await installation.get(approval) == resolved


@pytest.mark.parametrize("who", [AGENT, principal("agent", "claude", 1), principal("token", "tok_agent", 2)])
@pytest.mark.parametrize("verdict", ["supervisor", "human_approval"])
async def test_d9_nobody_decides_its_own(installation: Installation, who: object, verdict: str) -> None:
    """Without the right to approve; as the agent itself; with the credential that asked, whatever its level."""
    approval = await installation.ask(verdict=verdict)
    for work in (
        installation.approvals.resolve,
        installation.approvals.claim,
        installation.approvals.escalate,
    ):
        args = {"resolve": YES, "claim": 5000, "escalate": "why"}[work.__name__]
        with pytest.raises(Forbidden):
            await installation.do(work, who, approval.id, args, NOW + 1)  # type: ignore[arg-type]
    assert await installation.get(approval) == approval


async def test_a_credential_without_approve_decides_nothing(installation: Installation) -> None:
    approval = await installation.ask()
    viewer = PERSON.__class__(kind="user", id="u", workspace="local", scopes=frozenset({"read"}), level=2)
    with pytest.raises(Forbidden):
        await installation.answer(approval, by=viewer)


async def test_a_supervisor_cannot_answer_what_needs_a_person(installation: Installation) -> None:
    approval = await installation.ask(verdict="human_approval")
    with pytest.raises(Forbidden):
        await installation.answer(approval, by=SUPERVISOR)
    with pytest.raises(Forbidden):
        await installation.do(installation.approvals.claim, SUPERVISOR, approval.id, 5000, NOW)
    assert (await installation.answer(approval)).status is ApprovalState.APPROVED


async def test_d26_an_escalated_one_is_a_persons(installation: Installation) -> None:
    approval = await installation.ask()
    escalated = await installation.do(
        installation.approvals.escalate, SUPERVISOR, approval.id, "unsure", NOW + 1
    )
    assert (escalated.needs, escalated.escalated_by, escalated.escalated_at) == (
        "person", "agent:supervisor", NOW + 1
    )  # fmt: skip
    again = await installation.do(installation.approvals.escalate, SECOND, approval.id, "me too", NOW + 2)
    assert again == escalated
    for supervisor in (SUPERVISOR, SECOND):
        with pytest.raises(Forbidden):
            await installation.answer(approval, by=supervisor)
    await installation.answer(approval, NO)
    with pytest.raises(AlreadyAnswered):
        await installation.do(installation.approvals.escalate, PERSON, approval.id, None, NOW + 3)


async def test_d26_a_claim_keeps_other_supervisors_off_until_its_lease_ends(
    installation: Installation,
) -> None:
    approval = await installation.ask()
    claim = installation.approvals.claim
    held = await installation.do(claim, SUPERVISOR, approval.id, 10_000, NOW)
    assert (held.claimed_by, held.claimed_until) == ("agent:supervisor", NOW + 10_000)
    with pytest.raises(Conflict) as caught:
        await installation.do(claim, SECOND, approval.id, 10_000, NOW + 1)
    assert caught.value.data == {"claimedBy": "agent:supervisor", "claimedUntil": NOW + 10_000}
    with pytest.raises(Conflict):
        await installation.answer(approval, by=SECOND)
    with pytest.raises(Conflict):
        await installation.do(installation.approvals.escalate, SECOND, approval.id, None, NOW + 1)
    longer = await installation.do(claim, SUPERVISOR, approval.id, 20_000, NOW + 5)
    assert longer.claimed_until == NOW + 20_005
    taken = await installation.do(claim, SECOND, approval.id, 10_000, NOW + 20_005)
    assert taken.claimed_by == "token:tok_2"
    with pytest.raises(Conflict):
        await installation.answer(approval, by=SUPERVISOR, now=NOW + 20_006)
    assert (await installation.answer(approval, by=SECOND, now=NOW + 20_006)).status is ApprovalState.APPROVED


async def test_a_claim_never_keeps_a_person_off(installation: Installation) -> None:
    approval = await installation.ask()
    await installation.do(installation.approvals.claim, SUPERVISOR, approval.id, 10_000, NOW)
    taken = await installation.do(installation.approvals.claim, PERSON, approval.id, 10_000, NOW + 1)
    assert taken.claimed_by == "user:usr_1"
    with pytest.raises(Conflict):
        await installation.answer(approval, by=SUPERVISOR)
    other = principal("user", "usr_2", 2)
    assert (await installation.answer(approval, by=other)).resolved_by == "user:usr_2"


@pytest.mark.parametrize("lease", [0, -1, 999, 600_001])
async def test_a_lease_is_bounded(installation: Installation, lease: int) -> None:
    approval = await installation.ask()
    with pytest.raises(InvalidParams):
        await installation.do(installation.approvals.claim, SUPERVISOR, approval.id, lease, NOW)


@pytest.mark.parametrize("confidence", [7.5, -0.1, float("nan"), float("inf"), True, "0.5"])
def test_d11_a_confidence_outside_0_to_1_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidParams):
        ApprovalAnswer(approve=True, confidence=confidence)


@pytest.mark.parametrize("confidence", [0, 0.0, 0.5, 1, 1.0, None])
async def test_d11_a_confidence_from_0_to_1_is_kept(
    installation: Installation, confidence: float | None
) -> None:
    approval = await installation.answer(
        await installation.ask(), ApprovalAnswer(approve=True, confidence=confidence)
    )
    assert approval.confidence == confidence


async def test_d10_an_id_counts_whole_or_not_at_all(installation: Installation) -> None:
    approval = await installation.ask()
    wrong = ["", approval.id[:-1], approval.id[:6], "%", "_", "apr_%", approval.id + " ", approval.id.upper()]
    for other in wrong:
        with pytest.raises(NotFound):
            await installation.do(installation.approvals.resolve, PERSON, other, YES, NOW)
        with pytest.raises(NotFound):
            await installation.database.read(get, "local", other)
    assert (await installation.get(approval)).status is ApprovalState.PENDING


async def test_another_workspaces_approval_is_not_there(installation: Installation) -> None:
    approval = await installation.ask()
    stranger = principal("user", "usr_9", 2, "other")
    with pytest.raises(NotFound):
        await installation.ledger.transact(
            "other", installation.approvals.resolve, stranger, approval.id, YES, NOW
        )
    with pytest.raises(NotFound):
        await installation.database.read(get, "other", approval.id)
    page = await installation.database.read(listing.page, "other", listing.ApprovalFilter(), NOW)
    assert page.items == []


async def test_a_workspace_that_is_not_there_has_no_approvals(installation: Installation) -> None:
    with pytest.raises(NotFound):
        await installation.ask(workspace="nowhere")


async def test_an_approval_is_used_once(installation: Installation) -> None:
    approval = await installation.answer(await installation.ask())
    consumed = await installation.consume(approval)
    assert consumed.consumed_at == NOW + 2
    with pytest.raises(Conflict) as caught:
        await installation.consume(approval)
    assert caught.value.data == {"status": "consumed"}


@pytest.mark.parametrize("answer", [NO, None])
async def test_what_was_not_approved_is_not_used(
    installation: Installation, answer: ApprovalAnswer | None
) -> None:
    approval = await installation.ask()
    if answer:
        await installation.answer(approval, answer)
    with pytest.raises(Conflict):
        await installation.consume(approval)


async def test_an_approval_is_used_for_its_action_policy_and_waiter_alone(installation: Installation) -> None:
    approval = await installation.answer(await installation.ask())
    other = write_file("/etc/passwd").digest(VERSION)
    for wrong, reason in (
        ({"digest": other}, "action"),
        ({"policy_version": "v2"}, "policy-changed"),
        ({"waiter": Waiter(WAITER.id, "ins_2")}, "waiter"),
        ({"waiter": Waiter("session:ses_2", HOLDER)}, "waiter"),
    ):
        with pytest.raises(Conflict) as caught:
            await installation.consume(approval, NOW + 2, **wrong)
        assert caught.value.data == {"reason": reason}
    assert (await installation.consume(approval)).consumed_at


async def test_an_approval_in_the_last_moment_can_still_be_used_for_a_minute(
    installation: Installation,
) -> None:
    approval = await installation.ask()
    late = approval.expires_at - 1
    approved = await installation.answer(approval, now=late)
    with pytest.raises(Conflict) as caught:
        await installation.consume(approved, now=late + MIN_USE_MS)
    assert caught.value.data == {"status": "expired"}
    assert (await installation.consume(approved, now=late + MIN_USE_MS - 1)).consumed_at


async def test_what_ran_out_of_time_is_neither_answered_nor_listed_before_anybody_wrote_it_down(
    installation: Installation,
) -> None:
    approval = await installation.ask()
    late = approval.expires_at
    with pytest.raises(AlreadyAnswered) as caught:
        await installation.answer(approval, now=late)
    assert caught.value.data == {"status": "expired"}
    with pytest.raises(AlreadyAnswered):
        await installation.do(installation.approvals.claim, SUPERVISOR, approval.id, 5000, late)
    with pytest.raises(AlreadyAnswered):
        await installation.do(installation.approvals.escalate, SUPERVISOR, approval.id, None, late)
    assert await installation.listed(late, status="pending") == []
    assert listing.view(approval, {}, late).status == "expired"


async def test_due_ones_expire_and_say_whether_they_were_answered(installation: Installation) -> None:
    silent, unused, used, denied, later = [await installation.ask() for _ in range(4)] + [
        await installation.ask(expires_at=NOW + 60 * MINUTE)
    ]
    for approval in (unused, used):
        await installation.answer(approval)
    await installation.answer(denied, NO)
    await installation.consume(used)
    ended = await expire_due(installation.ledger, installation.approvals, NOW + 6 * MINUTE)
    assert {approval.id for approval in ended} == {silent.id, unused.id}
    assert await expire_due(installation.ledger, installation.approvals, NOW + 6 * MINUTE) == []
    statuses = [(await installation.get(each)).status.value for each in (silent, unused, used, denied, later)]
    assert statuses == ["expired", "expired", "approved", "denied", "pending"]
    reasons = await installation.sql("select reason from trace_step where step = 'expired' order by seq")
    assert sorted(row["reason"] for row in reasons) == ["unanswered", "unused"]


async def test_many_due_ones_of_several_workspaces_expire_in_one_call(installation: Installation) -> None:
    for number in range(130):
        workspace = "other" if number % 3 else "local"
        await installation.ledger.transact(
            workspace, installation.approvals.propose, proposal(workspace=workspace), NOW
        )
    ended = await expire_due(installation.ledger, installation.approvals, NOW + 6 * MINUTE)
    assert len(ended) == len({approval.id for approval in ended}) == 130
    assert (await installation.verify()).ok


async def test_d15_what_a_dead_process_waited_for_is_superseded_and_says_so(
    installation: Installation,
) -> None:
    pending, approved, used = [await installation.ask(waiter="ins_dead") for _ in range(3)]
    alive = await installation.ask(waiter="run_1")
    for approval in (approved, used):
        await installation.answer(approval)
    await installation.consume(used)
    assert await installation.open_holders() == ["ins_dead", "run_1"]
    ended = await supersede(installation.ledger, installation.approvals, ["ins_dead", "ins_other"], NOW + 5)
    assert {approval.id for approval in ended} == {pending.id, approved.id}
    assert await installation.open_holders() == ["run_1"]
    with pytest.raises(AlreadyAnswered) as caught:
        await installation.answer(pending)
    assert caught.value.data == {"status": "superseded"}
    with pytest.raises(Conflict):
        await installation.consume(approved)
    assert (await installation.get(used)).status is ApprovalState.APPROVED
    assert (await installation.get(alive)).status is ApprovalState.PENDING
    rows = await installation.sql("select reason from trace_step where step = 'superseded'")
    assert [row["reason"] for row in rows] == ["waiter-dead", "waiter-dead"]


async def test_a_caller_that_went_away_takes_its_approval_along_even_after_the_answer(
    installation: Installation,
) -> None:
    pending, approved, used = [await installation.ask() for _ in range(3)]
    for approval in (approved, used):
        await installation.answer(approval)
    await installation.consume(used)
    ids = [pending.id, approved.id, used.id, "apr_unknown"]
    ended = await installation.do(installation.approvals.cancel, "local", ids, "caller-gone", NOW + 3)
    assert [approval.id for approval in ended] == [pending.id, approved.id]
    with pytest.raises(Conflict):
        await installation.consume(approved)


async def test_cancelling_a_turn_cancels_its_approvals_alone(installation: Installation) -> None:
    first = await installation.ask(session_id="ses_1", turn_id="trn_1")
    second = await installation.ask(session_id="ses_1", turn_id="trn_2")
    other = await installation.ask(session_id="ses_2", turn_id="trn_1")
    cancel = installation.approvals.cancel_session
    ended = await installation.do(cancel, "local", "ses_1", "trn_1", "turn-cancelled", NOW + 1)
    assert [approval.id for approval in ended] == [first.id]
    ended = await installation.do(cancel, "local", "ses_1", None, "session-closed", NOW + 2)
    assert [approval.id for approval in ended] == [second.id]
    assert (await installation.get(other)).status is ApprovalState.PENDING


async def test_d26_an_edited_call_is_a_new_approval_in_place_of_the_old_one(
    installation: Installation,
) -> None:
    approval = await installation.ask(session_id="ses_1")
    edited = proposal(write_file("/p/safe.go"), session_id="ses_1")
    new = await installation.do(installation.approvals.edit, SUPERVISOR, approval.id, edited, NOW + 1)
    old = await installation.get(approval)
    assert (old.status, old.replaced_by, new.replaces) == (ApprovalState.SUPERSEDED, new.id, old.id)
    assert new.action_digest == write_file("/p/safe.go").digest(VERSION)
    with pytest.raises(AlreadyAnswered):
        await installation.answer(approval)
    approved = await installation.answer(new, by=SUPERVISOR)
    with pytest.raises(Conflict):
        await installation.consume(approved, digest=approval.action_digest)
    assert (await installation.consume(approved)).consumed_at


async def test_editing_lowers_nothing_and_moves_nothing_elsewhere(installation: Installation) -> None:
    approval = await installation.ask(verdict="human_approval")
    edit = installation.approvals.edit
    with pytest.raises(Forbidden):
        await installation.do(edit, SUPERVISOR, approval.id, proposal(), NOW + 1)
    for other in (
        proposal(write_file(tool="shell.run")),
        proposal(write_file(agent="codex")),
        proposal(waiter="ins_2"),
        proposal(requester="tok_other"),
        proposal(id=approval.id),
    ):
        with pytest.raises(InvalidParams):
            await installation.do(edit, PERSON, approval.id, other, NOW + 1)
    new = await installation.do(edit, PERSON, approval.id, proposal(verdict="supervisor"), NOW + 1)
    assert new.needs == "person"
    with pytest.raises(AlreadyAnswered):
        await installation.do(edit, PERSON, approval.id, proposal(), NOW + 2)


async def test_identical_ones_are_answered_together(installation: Installation) -> None:
    same = [await installation.ask() for _ in range(3)]
    other = await installation.ask(write_file("/p/other.go"))
    assert len({approval.group_key for approval in same}) == 1
    answered = await installation.do(
        installation.approvals.answer_group, SUPERVISOR, same[0].group_key, YES, NOW + 1
    )
    assert [approval.id for approval in answered.answered] == [approval.id for approval in same]
    assert answered.refused == ()
    assert (await installation.get(other)).status is ApprovalState.PENDING
    for key in (same[0].group_key, "", other.group_key[:5], "%"):
        with pytest.raises(NotFound):
            await installation.do(installation.approvals.answer_group, SUPERVISOR, key, YES, NOW + 1)


async def test_of_a_group_only_what_the_caller_may_answer_is_answered(installation: Installation) -> None:
    first, second = await installation.ask(), await installation.ask()
    await installation.do(installation.approvals.escalate, SECOND, second.id, None, NOW)
    answered = await installation.do(
        installation.approvals.answer_group, SUPERVISOR, first.group_key, YES, NOW + 1
    )
    assert ([each.id for each in answered.answered], answered.refused) == ([first.id], (second.id,))
    with pytest.raises(Forbidden):
        await installation.do(installation.approvals.answer_group, SUPERVISOR, first.group_key, YES, NOW + 1)


async def test_the_same_approval_is_not_asked_for_twice(installation: Installation) -> None:
    same = proposal()
    await installation.do(installation.approvals.propose, same, NOW)
    with pytest.raises(Conflict):
        await installation.do(installation.approvals.propose, same, NOW)
    assert (await installation.verify()).steps == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"expires_at": NOW},
        {"expires_at": NOW - 1},
        {"expires_at": NOW + LONGEST_WAIT_MS + 1},
        {"id": ""},
        {"waiter": Waiter("", HOLDER)},
        {"waiter": Waiter(WAITER.id, "")},
        {"policy_rule": "a\x00b"},
        {"trace_id": "not hex"},
        {"action": Action(agent="claude", tool="")},
        {"action": Action(agent="claude", tool="x" * 257)},
        {"action": Action(agent="claude", tool="a\ud800")},
        {"action": Action(agent="", tool="x")},
    ],
    ids=str,
)
async def test_what_cannot_be_kept_is_not_asked(installation: Installation, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidParams):
        await installation.ask(**bad)  # type: ignore[arg-type]
    assert (await installation.verify()).steps == 0


async def test_names_of_arguments_are_told_where_they_can_be_no_secret(installation: Installation) -> None:
    params = {"path": 1, "x" * 40: 2, "with space": 3, "sk-ant-api03-" + "y" * 30: 4}
    approval = await installation.ask(Action(agent="claude", tool="t", params=params))
    assert approval.argument_names == "?,?,?,path"
    many = await installation.ask(
        Action(agent="claude", tool="t", params={f"k{n:03}": n for n in range(100)})
    )
    assert many.argument_names.split(",")[-2:] == ["k063", "..."]


def test_only_pending_and_approved_lead_anywhere() -> None:
    assert TRANSITIONS.keys() == set(ApprovalState)
    assert {status for status, changes in TRANSITIONS.items() if changes} == {
        ApprovalState.PENDING,
        ApprovalState.APPROVED,
    }
    assert all(ApprovalState.PENDING not in changes.values() for changes in TRANSITIONS.values())


@pytest.mark.parametrize("other", [{"paths": ("/etc/passwd",)}, {"kind": "delete"}, {"command": "rm -r /"}])
async def test_a_group_asks_for_the_same_places_too_and_not_just_with_the_same_arguments(
    installation: Installation, other: dict[str, Any]
) -> None:
    """An ACP agent sends arguments of its own, and beside them where it would write."""
    shown = await installation.ask(write_file())
    hidden = await installation.ask(msgspec.structs.replace(write_file(), **other))
    answered = await installation.do(
        installation.approvals.answer_group, SUPERVISOR, shown.group_key, YES, NOW + 1
    )
    assert [each.id for each in answered.answered] == [shown.id]
    assert (await installation.get(hidden)).status is ApprovalState.PENDING
