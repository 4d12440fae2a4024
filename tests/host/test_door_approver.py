"""Permissions of a host's sessions, decided at the door: INV-A1 to INV-A3 of `door_approver`."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.approvals.doors import NO, YES
from tests.approvals.installation import PERSON, SUPERVISOR, principal
from tests.host.at_a_door import HOST, AtADoor, at_a_door, door_in_memory
from tests.host.rig import go, of_type, play, rig

from legation.approvals.admit import approve_edited
from legation.approvals.approval import Approval, ApprovalAnswer, ApprovalState
from legation.approvals.grants import Grant, GrantService, new_grant_id
from legation.approvals.grants import page as grants_page
from legation.approvals.policy.shell.split import split
from legation.errors import AlreadyAnswered, Conflict, Forbidden
from legation.host.options import Limits
from legation.host.requests.door_approver import Decide, DoorApprover
from legation.host.requests.handlers import Prepared
from legation.host.session import Session
from legation.testing.clock import FakeClock
from legation.wire.action import Action, Ask
from legation.wire.api.approvals import NewGrant
from legation.wire.resolved import ResolvedPaths

pytestmark = pytest.mark.heavy  # an agent's process for most

TELL = "update(json.dumps(answer(1))); done(prompt); stay()"


async def said_of(session: Session, type_: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for event in await of_type(session, type_)]


async def asked(at: AtADoor, session: Session, *steps: str) -> tuple[Approval, "asyncio.Task[Any]"]:
    """Until it waits."""
    prompting = asyncio.create_task(play(session, *steps))
    [approval] = await at.door.pending()
    return approval, prompting


async def test_what_a_rule_allows_is_not_asked_and_the_record_names_the_rule(tmp_path: Path) -> None:
    async with at_a_door(tmp_path) as at:
        session = await at.made.rehearse()
        await play(session, "ask run true")
        [answered] = await said_of(session, "permission-answered")
        assert (answered["outcome"], answered["by"], answered["optionId"]) == (
            "approved",
            "policy",
            "allow-once",
        )
        assert answered["reason"].startswith("p:runs: ")
        assert at.door.changes == []
        [entry] = await at.door.installation.entries(session=session.id)
        assert (entry.policy, entry.policy_rule) == ("allow", "p:runs")


async def test_a_permissions_id_is_its_approvals_id_and_an_answer_there_is_its_answer(tmp_path: Path) -> None:
    async with at_a_door(tmp_path) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        [permission] = await said_of(session, "permission-asked")
        assert (approval.id, approval.turn_id, approval.tool_call_id) == (
            permission["id"],
            permission["turn"],
            permission["toolCallId"],
        )
        assert (approval.session_id, approval.requester) == (session.id, HOST.id)
        await at.door.inbox.resolve(SUPERVISOR, approval.id, YES)
        await prompting
        assert (at.made.work / "a.txt").read_text() == "hello"
        [answered] = await said_of(session, "permission-answered")
        assert (answered["by"], answered["reason"]) == ("agent:supervisor", "p:edits: approved")
        steps = ["proposed", "decided", "resolved", "consumed"]
        assert await at.door.steps(approval.trace_id) == steps
        assert (await at.door.installation.verify()).ok


async def test_a_no_is_told_with_its_words(tmp_path: Path) -> None:
    async with at_a_door(tmp_path) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        await at.door.inbox.resolve(PERSON, approval.id, NO)
        await prompting
        assert not (at.made.work / "a.txt").exists()
        [answered] = await said_of(session, "permission-answered")
        assert (answered["outcome"], answered["by"], answered["message"]) == (
            "denied",
            "user:usr_1",
            "not today",
        )


async def test_what_a_rule_denies_reaches_the_agent_with_its_message(tmp_path: Path) -> None:
    source = "hello(); session(); prompt = prompted(); permission(1, title='t', kind='fetch')\n" + TELL
    async with at_a_door(tmp_path) as at:
        session = await at.made.script(source)
        await go(session)
        [chunk] = await said_of(session, "agent-message-chunk")
        heard = json.loads(chunk["content"]["text"])["result"]
        assert heard["outcome"] == {"outcome": "selected", "optionId": "reject_once"}
        assert heard["_meta"] == {"legation": {"message": "Leave it."}}
        [answered] = await said_of(session, "permission-answered")
        assert (answered["by"], answered["message"]) == ("policy", "Leave it.")
        assert answered["reason"].startswith("p:rest: ")


async def test_without_words_the_agent_hears_the_option_alone(tmp_path: Path) -> None:
    source = "hello(); session(); prompt = prompted(); permission(1, title='t', kind='execute')\n" + TELL
    async with at_a_door(tmp_path, "{name: p, rules: [{action: allow}]}") as at:
        session = await at.made.script(source)
        await go(session)
        [chunk] = await said_of(session, "agent-message-chunk")
        assert json.loads(chunk["content"]["text"])["result"] == {
            "outcome": {"outcome": "selected", "optionId": "allow_once"}
        }


async def cancel_turn(_at: AtADoor, session: Session) -> None:
    await session.cancel()


async def end_agent(at: AtADoor, session: Session) -> None:
    assert session.agent_id
    await at.made.host.dispose_agent(session.agent_id)


async def close_session(at: AtADoor, session: Session) -> None:
    await at.made.host.close_session(session.id)


@pytest.mark.parametrize("leave", [cancel_turn, end_agent, close_session])
async def test_whoever_leaves_takes_the_question_along(
    tmp_path: Path, leave: Callable[[AtADoor, Session], Any]
) -> None:
    async with at_a_door(tmp_path) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        await leave(at, session)
        await asyncio.gather(prompting, return_exceptions=True)
        await cancelled(at, approval)
        assert not (at.made.work / "a.txt").exists()


async def cancelled(at: AtADoor, approval: Approval) -> None:
    """It is, for good, and the trace says so."""
    ended = await at.door.until(
        lambda: at.door.get(approval.id), lambda found: found.status is not ApprovalState.PENDING
    )
    assert ended.status is ApprovalState.CANCELLED
    with pytest.raises(AlreadyAnswered) as late:
        await at.door.inbox.resolve(PERSON, approval.id, YES)
    assert late.value.status.http == 409
    assert await at.door.steps(approval.trace_id) == ["proposed", "decided", "cancelled/caller-gone"]


async def test_the_hosts_own_limit_takes_the_question_back(tmp_path: Path) -> None:
    clock, limits = FakeClock(), Limits(permission=30, idle=10_000)
    async with at_a_door(tmp_path, clock=clock, limits=limits) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        await clock.until_sleeping(2)
        clock.advance(30)
        await prompting
        await cancelled(at, approval)


async def test_an_agent_that_takes_its_question_back_cancels_the_approval(tmp_path: Path) -> None:
    policy = "{name: p, loop: off, rules: [{id: all, action: human_approval}]}"
    async with at_a_door(tmp_path, policy) as at:
        session = await at.made.rehearse()
        await play(session, "ask-withdraw something")
        [permission] = await said_of(session, "permission-asked")
        [answered] = await said_of(session, "permission-answered")
        assert answered["outcome"] == "superseded"
        if at.door.changes:  # else it was taken back before it had come to the door
            await cancelled(at, await at.door.get(permission["id"]))


async def test_the_requester_never_answers(tmp_path: Path) -> None:
    """INV-A2. Nor does its agent."""
    async with at_a_door(tmp_path) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        for who in (principal("process", "host", 2), principal("agent", "rehearsal", 2)):
            with pytest.raises(Forbidden):
                await at.door.inbox.resolve(who, approval.id, YES)
        await at.door.inbox.resolve(PERSON, approval.id, YES)
        await prompting


async def test_arguments_that_nobody_can_judge_are_refused_as_ever(tmp_path: Path) -> None:
    source = (
        "hello(); session(); prompt = prompted()\ndeep = {}\nfor _ in range(300): deep = {'a': deep}\n"
        "permission(1, title='t', kind='execute', rawInput=deep)\n" + TELL
    )
    async with at_a_door(tmp_path) as at:
        session = await at.made.script(source)
        await go(session)
        [chunk] = await said_of(session, "agent-message-chunk")
        assert json.loads(chunk["content"]["text"])["result"] == {"outcome": {"outcome": "cancelled"}}
        assert await at.door.installation.entries() == []


async def test_an_agents_home_is_its_own_and_outside_of_the_workspace(tmp_path: Path) -> None:
    source = (
        "hello(); session(); prompt = prompted(); update(os.environ['HOME'])\n"
        "permission(1, title='t', kind='edit', rawInput={'path': '~/.bashrc'})\nanswer(1); done(prompt); stay()"
    )
    async with at_a_door(tmp_path) as at:
        session = await at.made.script(source)
        await go(session)
        [chunk] = await said_of(session, "agent-message-chunk")
        home = chunk["content"]["text"]
        assert (session.meta.cwd, session.home) == (str(at.made.work), home)
        [permission] = await said_of(session, "permission-asked")
        assert permission["action"]["paths"] == [f"{home}/.bashrc"]
        [answered] = await said_of(session, "permission-answered")
        assert answered["reason"].startswith("p:rest: ")


# Without a host.


def ask(name: str = "a.txt", session: str = "ses_1", folder: Path = Path("/w"), **given: Any) -> Ask:
    action = Action(
        agent="claude", tool=given.pop("tool", "edit"), kind="edit", paths=(str(folder / name),), **given
    )
    return Ask(
        id=f"apr_{session}_{name}",
        session_id=session,
        action=action,
        options=(),
        title="t",
        asked_at=0,
        cwd=str(folder),
    )


ALLOW_INSIDE = """
name: p
loop: off
rules: [{id: inside, kind: edit, action: allow, when: {paths: {under: $WORKSPACE}}}]
"""


async def test_a_folder_stays_what_it_was_when_its_session_first_asked(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    async with door_in_memory(tmp_path, ALLOW_INSIDE) as rig:
        approver = DoorApprover(rig.door, HOST)
        assert (await approver.decide(ask(folder=inside))).outcome == "approved"
        inside.rename(tmp_path / "moved")
        inside.symlink_to(outside)
        assert (await approver.decide(ask("b.txt", folder=inside))).outcome == "denied"


async def test_a_session_that_moved_is_judged_where_it_is(tmp_path: Path) -> None:
    async with door_in_memory(tmp_path, ALLOW_INSIDE) as rig:
        approver = DoorApprover(rig.door, HOST)
        assert (await approver.decide(ask(folder=tmp_path / "one"))).outcome == "approved"
        moved = replace(ask("b", folder=tmp_path / "one"), cwd=str(tmp_path / "two"))
        assert (await approver.decide(moved)).outcome == "denied"


async def test_an_ask_of_a_session_here_is_judged_by_this_disk_whatever_it_carries(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    async with door_in_memory(tmp_path, ALLOW_INSIDE) as rig:
        approver = DoorApprover(rig.door, HOST)
        asked = ask("link/a.txt", folder=inside)
        harmless = ResolvedPaths(
            workspace=str(inside),
            cwd=str(inside),
            paths=asked.action.paths,
            folders={str(inside): str(inside)},
        )
        assert (await approver.decide(replace(asked, resolved=harmless))).outcome == "denied"


async def test_an_agent_that_takes_edits_is_answered_with_the_arguments_that_were_approved(
    tmp_path: Path,
) -> None:
    async with door_in_memory(tmp_path) as rig:
        approver = DoorApprover(rig.door, HOST)
        asked = replace(ask(params={"path": "/w/a.txt"}), editable=True)
        deciding = asyncio.create_task(approver.decide(asked))
        [approval] = await rig.pending()
        await approve_edited(rig.inbox, rig.policies.current, PERSON, approval.id, {"path": "/w/b.txt"}, YES)
        decision = await deciding
        assert (decision.outcome, decision.params) == ("approved", {"path": "/w/b.txt"})


async def test_an_agent_that_acts_on_its_own_cannot_be_given_other_arguments(tmp_path: Path) -> None:
    async with at_a_door(tmp_path) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        params = {"path": str(at.made.work / "b.txt")}
        with pytest.raises(Conflict, match="acts on its own"):
            await approve_edited(
                at.door.inbox,
                at.door.policies.current,
                PERSON,
                approval.id,
                params,
                ApprovalAnswer(approve=True),
            )
        await at.door.inbox.resolve(PERSON, approval.id, YES)
        await prompting
        assert (at.made.work / "a.txt").read_text() == "hello"


async def test_what_cannot_be_judged_or_kept_is_denied_and_says_why(tmp_path: Path) -> None:
    async with door_in_memory(tmp_path) as rig:
        approver = DoorApprover(rig.door, HOST)
        too_long = await approver.decide(ask(tool="t" * 300))
        assert (too_long.outcome, too_long.by) == ("denied", "legation")
        assert "cannot keep a tool's name" in str(too_long.message)
        assert "there is none" in (await approver.decide(replace(ask(), cwd=None))).reason
        assert await rig.installation.entries() == []


async def test_a_door_that_is_closed_denies_without_a_word_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door_in_memory(tmp_path) as rig:
        approver = DoorApprover(rig.door, HOST)
        await rig.door.close()
        decision = await approver.decide(ask())
    assert (decision.outcome, decision.by, decision.message) == (
        "denied",
        "legation",
        "not decided: try later",
    )
    assert "the server stops" in caplog.text


async def test_an_agent_that_asks_on_while_the_server_stops_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was 382."""
    async with door_in_memory(tmp_path) as rig:
        approver = DoorApprover(rig.door, HOST)
        await rig.door.close()
        decisions = [await approver.decide(ask(f"{number}.txt")) for number in range(50)]
    assert {decision.outcome for decision in decisions} == {"denied"}
    assert caplog.text.count("a permission was refused") == 1


TIMED = """
name: p
agent: "*"
loop: off
rules:
  - {id: edits, kind: edit, action: human_approval, timeout: 5m}
  - {id: rest, action: human_approval}
"""


async def test_a_permission_says_when_its_approval_ends_not_when_the_host_gives_up(tmp_path: Path) -> None:
    week = 7 * 86_400.0
    async with at_a_door(tmp_path, TIMED, limits=Limits(permission=week)) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        [permission] = await said_of(session, "permission-asked")
        assert approval.expires_at - approval.created_at == 300_000
        assert permission["expiresAt"] - permission["askedAt"] == 300_000
        await at.door.inbox.resolve(PERSON, approval.id, NO)
        await prompting


LOOKED_UP = """
name: p
agent: "*"
loop: off
rules:
  - {id: apart, kind: edit, action: human_approval, timeout: 5m, when: {paths: {under: $WORKSPACE/elsewhere}}}
  - {id: edits, kind: edit, action: human_approval, timeout: 2h}
  - {id: publishes, kind: execute, action: human_approval, timeout: 5m, when: {command: {glob: "make publish *"}}}
  - {id: rest, action: human_approval, timeout: 2h}
"""
ONLY_PARSED = "case a in a) make publish;; esac"  # nothing that `split` can read


@pytest.mark.parametrize("step", ["ask write link/a.txt hello", f"ask run {ONLY_PARSED}"])
async def test_a_permission_says_the_end_that_only_the_disk_or_the_parser_leads_to(
    tmp_path: Path, step: str
) -> None:
    assert split(ONLY_PARSED).unreadable
    (tmp_path / "work" / "elsewhere").mkdir(parents=True)
    (tmp_path / "work" / "link").symlink_to("elsewhere")
    async with at_a_door(tmp_path, LOOKED_UP, limits=Limits(permission=7 * 86_400.0)) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, step)
        [permission] = await said_of(session, "permission-asked")
        assert approval.policy_rule in ("p:apart", "p:publishes")
        assert approval.expires_at - approval.created_at == 300_000
        assert permission["expiresAt"] - permission["askedAt"] == 300_000
        await at.door.inbox.resolve(PERSON, approval.id, NO)
        await prompting


async def test_a_link_that_is_swapped_after_it_was_told_leads_to_no_other_rule(tmp_path: Path) -> None:
    """The expiry and the decision are of one look."""
    (tmp_path / "work" / "elsewhere").mkdir(parents=True)
    link = tmp_path / "work" / "link"
    link.symlink_to("elsewhere")

    class Swapped(DoorApprover):
        async def prepare(self, ask: Ask, decide: Decide | None = None) -> Prepared:
            prepared = await super().prepare(ask, decide)
            link.unlink()
            link.mkdir()
            return prepared

    async with (
        door_in_memory(tmp_path, LOOKED_UP) as door,
        rig(tmp_path, approver=Swapped(door.door, HOST)) as made,
    ):
        session = await made.rehearse()
        at = AtADoor(made, door)
        approval, prompting = await asked(at, session, "ask write link/a.txt hello")
        assert approval.policy_rule == "p:apart"
        [permission] = await said_of(session, "permission-asked")
        assert permission["expiresAt"] - permission["askedAt"] == 300_000
        await door.inbox.resolve(PERSON, approval.id, YES)
        await prompting
        [answered] = await said_of(session, "permission-answered")
        assert answered["outcome"] == "denied"  # it leads elsewhere than when it was asked


async def test_rules_that_are_edited_while_the_end_is_found_out_decide(tmp_path: Path) -> None:
    """What passed under rules that hold no more passes by the new ones, or not at all."""

    class Edited(DoorApprover):
        async def prepare(self, ask: Ask, decide: Decide | None = None) -> Prepared:
            prepared = await super().prepare(ask, decide)
            door.edit("{name: p, agent: '*', loop: off, rules: [{id: shut, action: deny}]}")
            return prepared

    async with (
        door_in_memory(
            tmp_path, "{name: p, agent: '*', loop: off, rules: [{id: open, action: allow}]}"
        ) as door,
        rig(tmp_path, approver=Edited(door.door, HOST)) as made,
    ):
        session = await made.rehearse()
        await play(session, "ask write a.txt hello")
        [answered] = await said_of(session, "permission-answered")
        assert (answered["outcome"], answered["by"]) == ("denied", "policy")
        assert answered["reason"].startswith("p:shut: ")
        assert not (made.work / "a.txt").exists()


async def test_a_permission_ends_with_the_hosts_own_time_where_that_is_shorter(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, TIMED, limits=Limits(permission=200.0)) as at:
        session = await at.made.rehearse()
        approval, prompting = await asked(at, session, "ask write a.txt hello")
        [permission] = await said_of(session, "permission-asked")
        assert permission["expiresAt"] - permission["askedAt"] == 200_000
        await at.door.inbox.resolve(PERSON, approval.id, NO)
        await prompting


ONLY_ALWAYS = "[option for option in OPTIONS if option['kind'] != 'allow_once']"
MASTERFUL = f"""
hello(); session(); prompt = prompted()
permission(1, kind="edit", title="Edit a.txt", rawInput={{"path": "a.txt"}}, options={ONLY_ALWAYS})
{TELL}
"""
ALWAYS = """
name: p
agent: "*"
loop: off
rules:
  - {id: edits, kind: edit, action: ACTION}
  - {id: rest, action: deny}
"""


async def heard(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the agent was told, and what the session has of it."""
    [chunk] = await said_of(session, "agent-message-chunk")
    [answered] = await said_of(session, "permission-answered")
    return json.loads(chunk["content"]["text"])["result"]["outcome"], answered


async def grants_of(at: AtADoor) -> list[Grant]:
    return (await at.door.installation.database.read(grants_page, "local")).items


async def test_a_person_who_approves_an_agent_that_offers_only_always_grants_the_tool_for_the_session(
    tmp_path: Path,
) -> None:
    async with at_a_door(tmp_path, ALWAYS.replace("ACTION", "human_approval")) as at:
        session = await at.made.script(MASTERFUL)
        prompting = asyncio.create_task(go(session))
        [approval] = await at.door.pending()
        await at.door.inbox.resolve(PERSON, approval.id, YES)
        await prompting
        told, answered = await heard(session)
        assert told == {"outcome": "selected", "optionId": "allow_always"}
        [grant] = await grants_of(at)
        assert (grant.session_id, grant.agent, grant.tools, grant.kinds) == (
            session.id,
            "scripted",
            "edit",
            ("edit",),
        )
        assert grant.granted_by == PERSON.id
        assert (answered["outcome"], answered["optionId"]) == ("approved", "allow_always")
        assert grant.id in answered["reason"]
        assert await at.door.steps(approval.trace_id) == ["proposed", "decided", "resolved", "consumed"]


async def test_a_supervisor_cannot_press_always_for_an_agent(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, ALWAYS.replace("ACTION", "supervisor")) as at:
        session = await at.made.script(MASTERFUL)
        prompting = asyncio.create_task(go(session))
        [approval] = await at.door.pending()
        await at.door.inbox.resolve(SUPERVISOR, approval.id, YES)
        await prompting
        told, answered = await heard(session)
        assert told == {"outcome": "selected", "optionId": "reject_once"}
        assert (answered["outcome"], answered["by"]) == ("denied", "policy")
        assert "offers only to allow it always" in answered["reason"]
        assert await grants_of(at) == []
        assert (await at.door.steps(approval.trace_id))[-1] == "cancelled/only-always"


@pytest.mark.parametrize(
    ("grant", "pressed"),
    [
        (NewGrant(agent="scripted", tools="edit", duration=60), True),
        (NewGrant(agent="scripted", tools="*", kinds=["edit"], duration=60), False),  # in its folder only
        (NewGrant(agent="scripted", tools="read", duration=60), False),
        (None, False),
    ],
)
@pytest.mark.parametrize("action", ["allow", "human_approval, timeout: 1s"])
async def test_always_is_pressed_only_where_a_grant_covers_the_tool_whatever_its_arguments(
    tmp_path: Path, action: str, grant: NewGrant | None, pressed: bool
) -> None:
    async with at_a_door(tmp_path, ALWAYS.replace("ACTION", action)) as at:
        session = await at.made.script(MASTERFUL)
        if grant is not None:
            grants = GrantService(
                at.door.installation.database, at.door.installation.ledger.chain.sealer, at.door.clock
            )
            now = at.door.clock.now_ms()
            await at.door.installation.database.transact(
                grants.give, PERSON, grant, grant=new_grant_id(now), now_ms=now, session=session.id
            )
        prompting = asyncio.create_task(go(session))
        if not pressed and action != "allow":
            await at.door.pending()
            await at.door.pass_time(5)
        await prompting
        told, answered = await heard(session)
        assert told["optionId"] == ("allow_always" if pressed else "reject_once")
        assert answered["outcome"] == (
            "approved" if pressed else "denied" if action == "allow" else "expired"
        )


async def test_reviewers_are_asked_every_time_so_always_is_not_pressed(tmp_path: Path) -> None:
    policy = ALWAYS.replace("ACTION", f"human_approval, reviewers: ['user:{PERSON.id}']")
    async with at_a_door(tmp_path, policy) as at:
        session = await at.made.script(MASTERFUL)
        prompting = asyncio.create_task(go(session))
        [approval] = await at.door.pending()
        await at.door.inbox.resolve(PERSON, approval.id, YES)
        await prompting
        told, _ = await heard(session)
        assert told["optionId"] == "reject_once"
        assert await grants_of(at) == []
