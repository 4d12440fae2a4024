import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.approvals.doors import ASKER, LIMIT, NO, POLICY, YES, Counter, Rig, call, open_door, request
from tests.approvals.installation import NOW, PERSON, SUPERVISOR, Installation

from legation.approvals.admit import approve_edited
from legation.approvals.approval import ApprovalAnswer, ApprovalState
from legation.approvals.door import MOVED
from legation.approvals.grants import new_grant_id
from legation.approvals.policy.facts import Facts
from legation.approvals.request import DoorRequest, ToolReturn
from legation.approvals.trace.step import new_trace_id
from legation.errors import AlreadyAnswered, Conflict, Forbidden, RateLimited, Unavailable
from legation.wire.action import Action
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal

pytestmark = pytest.mark.heavy

REVIEWED = "action: human_approval, reviewers: [FIN@x.org]"


@pytest.fixture
async def rig(installation: Installation, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_door(installation, tmp_path) as opened:
        yield opened


async def test_what_is_allowed_passes_at_once_and_is_traced(rig: Rig) -> None:
    asked = request("fs.read")
    ruling = await rig.door.decide(asked)
    assert (ruling.outcome, ruling.by, ruling.rule) == ("approved", "policy", "p:reads")
    assert await rig.steps(asked.trace_id) == ["proposed", "decided"]


async def test_what_is_denied_says_its_rule_and_message(rig: Rig) -> None:
    ruling, returned = await rig.door.run(request("fs.rm"), counter := Counter())
    assert (ruling.outcome, ruling.rule, ruling.message) == ("denied", "p:rm", "Leave it.")
    assert returned is None
    assert counter.calls == []


async def test_what_no_rule_names_is_denied(rig: Rig) -> None:
    assert (await rig.door.decide(request("fs.format"))).rule == "default:no-match"


async def test_an_approved_call_runs_once_and_the_trace_has_every_step(rig: Rig) -> None:
    asked, counter = request("fs.write"), Counter()
    running = asyncio.create_task(rig.door.run(asked, counter))
    [approval] = await rig.pending()
    await rig.inbox.resolve(SUPERVISOR, approval.id, YES)
    ruling, returned = await running
    assert (ruling.outcome, ruling.by) == ("approved", "agent:supervisor")
    assert returned == ToolReturn(status_code=200, result={"done": True})
    assert [token.approval_id for _, token in counter.calls] == [approval.id]
    steps = ["proposed", "decided", "resolved", "consumed", "executed", "returned"]
    assert await rig.steps(asked.trace_id) == steps
    [entry] = await rig.installation.entries()
    assert (
        entry.approved_by,
        entry.supervisor_reasoning,
        entry.supervisor_confidence,
        entry.status_code,
    ) == (
        "agent:supervisor",
        "fine",
        0.9,
        200,
    )
    assert [step for _, step in rig.changes] == ["proposed", "resolved", "consumed"]
    assert (await rig.installation.verify()).ok


async def test_a_denied_call_never_runs_and_the_agent_hears_why(rig: Rig) -> None:
    running = asyncio.create_task(rig.door.run(request("mail.send"), counter := Counter()))
    [approval] = await rig.pending()
    await rig.inbox.resolve(PERSON, approval.id, NO)
    ruling, returned = await running
    assert (ruling.outcome, ruling.by, ruling.message) == ("denied", "user:usr_1", "not today")
    assert returned is None
    assert counter.calls == []


async def test_silence_is_no_consent(rig: Rig) -> None:
    asked = request("mail.send", timeout=60)
    running = asyncio.create_task(rig.door.run(asked, counter := Counter()))
    [approval] = await rig.pending()
    await rig.pass_time(61)
    ruling, _ = await running
    assert ruling.outcome == "expired"
    assert counter.calls == []
    assert (await rig.get(approval.id)).status is ApprovalState.EXPIRED
    assert await rig.steps(asked.trace_id) == ["proposed", "decided", "expired/unanswered"]


async def test_d13_whoever_has_gone_takes_the_question_along(rig: Rig) -> None:
    asked, counter = request("mail.send"), Counter()
    running = asyncio.create_task(rig.door.run(asked, counter))
    [approval] = await rig.pending()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await rig.until(lambda: rig.get(approval.id), lambda found: found.status is ApprovalState.CANCELLED)
    with pytest.raises(AlreadyAnswered):
        await rig.inbox.resolve(PERSON, approval.id, YES)
    assert counter.calls == []
    assert await rig.steps(asked.trace_id) == ["proposed", "decided", "cancelled/caller-gone"]


async def test_an_effect_that_began_is_brought_to_its_end_although_the_caller_left(rig: Rig) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> ToolReturn:
        began.set()
        await go_on.wait()
        return ToolReturn(status_code=200, result=1)

    asked = request("fs.read")
    running = asyncio.create_task(rig.door.run(asked, Counter(answer=slow)))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    await rig.until(
        lambda: rig.steps(asked.trace_id),
        lambda steps: steps == ["proposed", "decided", "executed", "returned"],
    )


async def test_a_tool_that_raises_is_a_failed_tool(rig: Rig) -> None:
    async def broken() -> ToolReturn:
        raise ValueError("secret words")

    asked = request("fs.read")
    ruling, returned = await rig.door.run(asked, Counter(answer=broken))
    assert ruling.passed
    assert returned is not None
    assert (returned.status_code, returned.error) == (502, "the tool failed")


async def test_a_grant_lifts_what_would_be_asked_but_never_a_denial(rig: Rig) -> None:
    from legation.approvals.grants import GrantService

    grants = GrantService(rig.installation.database, rig.installation.sealer, rig.clock)
    given = await rig.installation.do(
        grants.give,
        PERSON,
        NewGrant(agent="claude", tools="*", duration=60),
        grant=new_grant_id(NOW),
        now_ms=rig.clock.now_ms(),
    )
    asked = request("mail.send")
    ruling = await rig.door.decide(asked)
    assert (ruling.outcome, ruling.by, ruling.policy) == ("approved", f"grant:{given.id}", "human_approval")
    assert await rig.steps(asked.trace_id) == ["proposed", "decided/granted"]
    [entry] = await rig.installation.entries()
    assert entry.approved_by == f"grant:{given.id}"
    assert (await rig.door.decide(request("fs.rm"))).outcome == "denied"
    assert (await rig.door.preview(request("mail.send"))).grant == given.id
    rig.clock.advance(61)
    running = asyncio.create_task(rig.door.decide(request("mail.send")))
    assert len(await rig.pending()) == 1
    running.cancel()


async def test_a_sessions_grant_for_edits_is_considered_as_it_is_decided(rig: Rig) -> None:
    from legation.approvals.grants import GrantService

    grants = GrantService(rig.installation.database, rig.installation.sealer, rig.clock)
    given = await rig.installation.do(
        grants.give,
        PERSON,
        NewGrant(agent="claude", tools="*", kinds=["edit"], duration=60),
        grant=new_grant_id(NOW),
        now_ms=rig.clock.now_ms(),
        session="s",
    )
    edit = Action(agent="claude", tool="fs.write", kind="edit", paths=("/w/a",))
    inside = request(action=edit, session_id="s", in_session=True)
    assert (await rig.door.preview(inside)).grant == given.id
    assert (await rig.door.decide(inside)).by == f"grant:{given.id}"
    elsewhere = Action(agent="claude", tool="fs.write", kind="edit", paths=("/etc/a",))
    outside = request(action=elsewhere, session_id="s", in_session=True)
    assert (await rig.door.preview(outside)).grant is None


async def test_a_grant_lifts_nothing_where_the_injection_signal_fires(
    installation: Installation, tmp_path: Path
) -> None:
    from legation.approvals.grants import GrantService

    async with open_door(
        installation, tmp_path, signal=lambda action: "approve me" in str(action.params)
    ) as rig:
        grants = GrantService(installation.database, installation.sealer, rig.clock)
        grant = NewGrant(agent="*", tools="*", duration=60)
        await installation.do(grants.give, PERSON, grant, grant=new_grant_id(NOW), now_ms=rig.clock.now_ms())
        assert (await rig.door.decide(request("mail.send"))).passed
        bad = replace(request("mail.send"), action=call("mail.send", body="approve me"))
        running = asyncio.create_task(rig.door.decide(bad))
        [approval] = await rig.pending()
        assert approval.injection_risk
        running.cancel()


async def test_edited_arguments_are_a_new_approval_and_are_what_runs(rig: Rig) -> None:
    asked, counter = request("fs.write", editable=True), Counter()
    running = asyncio.create_task(rig.door.run(asked, counter))
    [approval] = await rig.pending()
    new = await approve_edited(
        rig.inbox, rig.policies.current, PERSON, approval.id, {"path": "/w/b"}, ApprovalAnswer(approve=True)
    )
    ruling, _ = await running
    assert ruling.passed
    assert ruling.approval_id == new.id
    assert ruling.trace_id == new.trace_id
    assert [(action.params, action.paths) for action, _ in counter.calls] == [({"path": "/w/b"}, ("/w/b",))]
    old = await rig.get(approval.id)
    assert (old.status, old.replaced_by) == (ApprovalState.SUPERSEDED, new.id)
    assert await rig.steps(new.trace_id) == [
        "proposed",
        "decided",
        "resolved",
        "consumed",
        "executed",
        "returned",
    ]


async def test_arguments_cannot_be_edited_where_the_agent_acts_on_its_own(rig: Rig) -> None:
    running = asyncio.create_task(rig.door.decide(request("fs.write")))
    [approval] = await rig.pending()
    with pytest.raises(Conflict):
        await approve_edited(
            rig.inbox, rig.policies.current, PERSON, approval.id, {"path": "/b"}, ApprovalAnswer(approve=True)
        )
    assert (await rig.get(approval.id)).status is ApprovalState.PENDING
    running.cancel()


async def test_edited_arguments_that_the_policy_denies_stay_denied(
    installation: Installation, tmp_path: Path
) -> None:
    text = POLICY.replace(
        "  - {id: writes",
        "  - {id: etc, tools: fs.write, action: deny, when: {paths: {under: /etc}}}\n  - {id: writes",
    )
    async with open_door(installation, tmp_path, text) as rig:
        running = asyncio.create_task(rig.door.decide(request("fs.write", editable=True)))
        [approval] = await rig.pending()
        with pytest.raises(Forbidden):
            await approve_edited(
                rig.inbox,
                rig.policies.current,
                PERSON,
                approval.id,
                {"path": "/etc/x"},
                ApprovalAnswer(approve=True),
            )
        running.cancel()


async def test_an_edit_of_the_rules_decides_anew_what_is_pending(rig: Rig) -> None:
    """Still asked: bound to the new rules. Allowed: passes. Denied: is refused."""
    tasks = {tool: asyncio.create_task(rig.door.decide(request(tool))) for tool in ("fs.write", "mail.send")}
    first = {approval.tool: approval for approval in await rig.pending(2)}
    rig.edit(POLICY.replace("tools: fs.write, action: supervisor", "tools: fs.write, action: human_approval"))
    bound = rig.policies.current.version
    await rig.until(
        lambda: rig.get(first["fs.write"].id),
        lambda found: (found.policy_version, found.needs) == (bound, "person"),
    )
    rig.edit(
        POLICY.replace("tools: fs.write, action: supervisor", "tools: fs.write, action: allow").replace(
            "tools: mail.send, action: human_approval", "tools: mail.send, action: deny"
        )
    )
    written, mailed = await tasks["fs.write"], await tasks["mail.send"]
    assert (written.outcome, written.by) == ("approved", "policy")
    assert (mailed.outcome, mailed.rule) == ("denied", "p:mails")
    for approval in first.values():
        assert (await rig.get(approval.id)).status is ApprovalState.CANCELLED


async def test_a_rebound_approval_is_consumed_under_the_new_rules(rig: Rig) -> None:
    running = asyncio.create_task(rig.door.decide(request("fs.write")))
    [approval] = await rig.pending()
    rig.edit(POLICY + "  - {id: other, tools: x.y, action: allow}\n")
    await rig.until(
        lambda: rig.get(approval.id),
        lambda found: found.policy_version == rig.policies.current.version,
    )
    await rig.inbox.resolve(SUPERVISOR, approval.id, YES)
    assert (await running).passed


async def test_d5_limits_stop_a_call_before_its_policy(installation: Installation, tmp_path: Path) -> None:
    async with open_door(
        installation, tmp_path, POLICY.replace("loop: off", "loop: off\nmax_total: 2")
    ) as rig:
        outcomes = [(await rig.door.decide(request("fs.read"))).limit for _ in range(3)]
        assert outcomes == [None, None, "total"]
        considered = await rig.door.preview(request("fs.read"))
        assert (considered.action, considered.limit, considered.policy_rule) == (
            "deny",
            "total",
            "p:max-total",
        )


async def test_d4_the_same_call_again_and_again_is_a_loop_on_every_way_in(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path, POLICY.replace("loop: off\n", "")) as rig:
        assert [(await rig.door.decide(request("fs.read"))).limit for _ in range(2)] == [None, None]
        ruling, _ = await rig.door.run(request("fs.read"), counter := Counter())
        assert ruling.limit == "loop"
        assert counter.calls == []
        assert (await rig.door.preview(request("fs.read"))).limit == "loop"


async def test_money_is_spent_when_a_call_passes_and_not_when_it_is_asked_about(
    installation: Installation, tmp_path: Path
) -> None:
    text = """
name: p
agent: "*"
loop: off
spend: {field: amount, per: total, limit: 100}
rules: [{id: pay, tools: pay, action: human_approval}]
"""
    async with open_door(installation, tmp_path, text) as rig:
        asked = [request(action=call("pay", amount=60, to=name)) for name in ("ann", "bob")]
        tasks = [asyncio.create_task(rig.door.decide(each)) for each in asked]
        for approval in await rig.pending(2):
            await rig.inbox.resolve(PERSON, approval.id, YES)
        rulings = [await task for task in tasks]
        assert sorted(ruling.outcome for ruling in rulings) == ["approved", "denied"]
        [stopped] = [ruling for ruling in rulings if not ruling.passed]
        assert (stopped.limit, stopped.rule) == ("spend", "p:spend")


async def test_considering_runs_counts_and_records_nothing(rig: Rig) -> None:
    before = await rig.installation.sql("select count(*) as n from trace_step")
    considered = await rig.door.preview(request("fs.write"))
    assert (considered.action, considered.policy_rule) == ("supervisor", "p:writes")
    assert await rig.installation.sql("select count(*) as n from trace_step") == before
    assert (
        await rig.installation.sql("select * from approval")
        == await rig.installation.sql("select * from counter")
        == []
    )


async def test_a_closing_door_tells_everybody_who_waits(installation: Installation, tmp_path: Path) -> None:
    async with open_door(installation, tmp_path) as rig:
        asked = request("mail.send")
        running = asyncio.create_task(rig.door.decide(asked))
        [approval] = await rig.pending()
        await rig.door.close()
        ruling = await running
        assert ruling.outcome == "cancelled"
        assert await rig.steps(asked.trace_id) == ["proposed", "decided", "cancelled/stopping"]
        with pytest.raises(Unavailable):
            await rig.door.decide(request("fs.read"))
        assert (await rig.get(approval.id)).status is ApprovalState.CANCELLED


async def test_the_requester_never_answers_its_own(rig: Rig) -> None:
    running = asyncio.create_task(rig.door.decide(request("mail.send")))
    [approval] = await rig.pending()
    own = replace(ASKER, level=2, scopes=frozenset({"approve", "operate"}))
    with pytest.raises(Forbidden):
        await rig.inbox.resolve(own, approval.id, YES)
    running.cancel()


async def test_a_hundred_calls_at_once_each_get_their_own_answer(rig: Rig) -> None:
    asked = [request(action=call("mail.send", to=str(number))) for number in range(100)]
    tasks = [asyncio.create_task(rig.door.run(each, Counter())) for each in asked]
    by_trace = {approval.trace_id: approval for approval in await rig.pending(100)}
    await asyncio.gather(
        *(
            rig.inbox.resolve(PERSON, by_trace[each.trace_id].id, YES if number % 2 else NO)
            for number, each in enumerate(asked)
        )
    )
    outcomes = [(await task)[0].outcome for task in tasks]
    assert outcomes == ["approved" if number % 2 else "denied" for number in range(100)]
    assert (await rig.installation.verify()).ok


async def test_a_rule_with_reviewers_is_decided_by_them_alone(
    installation: Installation, tmp_path: Path
) -> None:
    await installation.sql(
        "insert into app_user (id, name, email, created_at) values ('usr_9', 'Fin', 'fin@x.org', 0)"
    )
    text = POLICY.replace("tools: mail.send, action: human_approval", f"tools: mail.send, {REVIEWED}")
    async with open_door(installation, tmp_path, text) as rig:
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        with pytest.raises(Forbidden, match="leaves that to"):
            await rig.inbox.resolve(PERSON, approval.id, YES)
        await rig.inbox.resolve(replace(PERSON, id="tok_9", kind="token", user="usr_9"), approval.id, YES)
        assert (await running).passed


async def test_a_grant_lifts_no_rule_that_names_its_reviewers(
    installation: Installation, tmp_path: Path
) -> None:
    """Else anybody who may give grants would decide in their place."""
    from legation.approvals.grants import GrantService

    text = POLICY.replace("tools: mail.send, action: human_approval", f"tools: mail.send, {REVIEWED}")
    async with open_door(installation, tmp_path, text) as rig:
        grants = GrantService(installation.database, installation.sealer, rig.clock)
        grant = NewGrant(agent="*", tools="*", duration=60)
        await installation.do(grants.give, PERSON, grant, grant=new_grant_id(NOW), now_ms=rig.clock.now_ms())
        assert (await rig.door.preview(request("mail.send"))).grant is None
        running = asyncio.create_task(rig.door.decide(request("mail.send")))
        [approval] = await rig.pending()
        assert approval.reviewers == ("FIN@x.org",)
        running.cancel()


async def test_the_same_question_cannot_be_asked_twice_at_once(rig: Rig) -> None:
    running = asyncio.create_task(rig.door.decide(request("mail.send", approval_id="apr_same")))
    [approval] = await rig.pending()
    with pytest.raises(Conflict):
        await rig.door.decide(request("mail.send", approval_id="apr_same"))
    await rig.inbox.resolve(PERSON, approval.id, YES)
    assert (await running).passed


async def test_a_credential_that_asks_for_too_much_at_once_is_refused_and_nobody_else(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path, most_waiting=2) as rig:
        waiting = [asyncio.create_task(rig.door.decide(request(action=call(n=n)))) for n in range(2)]
        first, _ = await rig.pending(2)
        with pytest.raises(RateLimited, match="more than 2 approvals at once"):
            await rig.door.decide(request(action=call(n=2)))
        assert (await rig.door.decide(request("fs.read"))).passed  # what needs no answer takes no room
        other = replace(request(action=call(n=2)), principal=replace(ASKER, id="tok_other"))
        waiting.append(asyncio.create_task(rig.door.decide(other)))
        assert len(await rig.pending(3)) == 3
        await rig.inbox.resolve(PERSON, first.id, NO)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        waiting.append(asyncio.create_task(rig.door.decide(request(action=call(n=3)))))
        assert len(await rig.pending(3)) == 3
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


SHELL = """
name: p
agent: "*"
loop: off
rules:
  - {id: usual, kind: execute, action: allow, when: {command: {glob: [git commit *, cat]}}}
  - {id: rest, kind: execute, action: human_approval}
"""
COMMIT = "git commit -m \"$(cat <<'EOF'\nA message\nEOF\n)\""


def bash(command: str) -> Action:
    return Action(agent="claude", tool="Bash", kind="execute", params={"command": command}, command=command)


async def test_a_line_that_takes_the_parser_is_decided_on_every_way_through_the_door(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path, SHELL) as rig:
        asked = request(action=bash(COMMIT))
        assert (await rig.door.decide(asked)).rule == "p:usual"
        assert (await rig.door.run(request(action=bash(COMMIT)), Counter()))[0].rule == "p:usual"
        assert (await rig.door.preview(asked)).action == "allow"
        assert (await rig.door.preview(request(action=bash(f"{COMMIT} && rm x")))).action == "human_approval"


async def test_a_line_that_takes_the_parser_is_read_when_the_rules_change_and_when_it_is_edited(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path, SHELL.replace("git commit *, ", "")) as rig:
        waiting = asyncio.create_task(rig.door.decide(request(action=bash(COMMIT))))
        await rig.pending()
        rig.edit(SHELL)
        assert (await waiting).rule == "p:usual"
        counter = Counter()
        edited = request(action=bash("make"), editable=True)
        running = asyncio.create_task(rig.door.run(edited, counter))
        [approval] = await rig.pending()
        denying = SHELL.replace(
            "rules:", "rules:\n  - {id: never, action: deny, when: {command: {glob: git push *}}}"
        )
        rig.edit(denying)
        params = {"command": COMMIT.replace("git commit", "git push")}
        with pytest.raises(Forbidden):
            await approve_edited(
                rig.inbox, rig.policies.current, PERSON, approval.id, params, ApprovalAnswer(approve=True)
            )
        await approve_edited(
            rig.inbox,
            rig.policies.current,
            PERSON,
            approval.id,
            {"command": COMMIT},
            ApprovalAnswer(approve=True),
        )
        assert (await running)[0].passed
        assert [action.command for action, _ in counter.calls] == [COMMIT]


async def test_what_the_agent_is_told_comes_from_the_step_that_decided(
    installation: Installation, tmp_path: Path
) -> None:
    """A supervisor that leaves a call to a person explains itself to that person, not to the agent."""
    async with open_door(installation, tmp_path) as rig:
        running = asyncio.create_task(rig.door.decide(request("fs.write")))
        [approval] = await rig.pending()
        await rig.inbox.escalate(SUPERVISOR, approval.id, "it looks like an attack on the build")
        await rig.inbox.resolve(PERSON, approval.id, ApprovalAnswer(approve=False))
        ruling = await running
        assert (ruling.outcome, ruling.by) == ("denied", "user:usr_1")
        assert ruling.message == "denied by user:usr_1"


LINKS = """
name: p
agent: "*"
loop: off
rules:
  - {id: mine, tools: fs.write, when: {paths: {under: $WORKSPACE}}, action: human_approval}
  - {id: others, tools: fs.write, action: deny, message: Stay at home.}
"""


@pytest.mark.parametrize("inside", [True, False])
async def test_a_link_that_is_swapped_before_the_approval_is_used_is_a_deny(
    installation: Installation, tmp_path: Path, inside: bool
) -> None:
    """Also where the rules would ask about the new place in the same way: that is not what was approved."""
    work, secret = tmp_path / "work", tmp_path / "secret"
    for folder in (work / "a", work / "b", secret):
        folder.mkdir(parents=True)
    link = work / "link"
    link.symlink_to(work / "a")
    async with open_door(installation, tmp_path, LINKS) as rig:
        action = Action(agent="claude", tool="fs.write", params={}, paths=(str(link / "x"),))
        asked = DoorRequest(principal=ASKER, action=action, facts=Facts(str(work), str(work)))
        counter = Counter()
        running = asyncio.create_task(rig.door.run(asked, counter))
        [approval] = await rig.pending()
        link.unlink()
        link.symlink_to(work / "b" if inside else secret)
        await rig.inbox.resolve(PERSON, approval.id, YES)
        ruling, _ = await running
        assert (ruling.outcome, counter.calls) == ("denied", [])
        assert ruling.message == (MOVED if inside else "Stay at home.")
        assert await rig.steps(asked.trace_id) == [
            "proposed", "decided", "resolved", "cancelled/paths-changed"
        ]  # fmt: skip


async def test_a_link_that_stays_is_no_deny(installation: Installation, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "a").mkdir(parents=True)
    (work / "link").symlink_to(work / "a")
    async with open_door(installation, tmp_path, LINKS) as rig:
        action = Action(agent="claude", tool="fs.write", params={}, paths=(str(work / "link" / "x"),))
        asked = DoorRequest(principal=ASKER, action=action, facts=Facts(str(work), str(work)))
        running = asyncio.create_task(rig.door.run(asked, Counter()))
        [approval] = await rig.pending()
        (work / "a" / "x").write_text("made meanwhile")
        await rig.inbox.resolve(PERSON, approval.id, YES)
        assert (await running)[0].passed


async def test_calls_and_sessions_of_one_agent_take_no_room_from_each_other(
    installation: Installation, tmp_path: Path
) -> None:
    """A session is the host's, and counts by itself; whoever calls a tool may name it and takes nothing of it."""
    host = Principal(kind="process", id="host", workspace="local", scopes=frozenset(), level=0)
    async with open_door(installation, tmp_path, most_pending=1) as rig:
        session = replace(request("mail.send", session_id="s1", in_session=True), principal=host)
        tasks = [asyncio.create_task(rig.door.decide(session))]
        await rig.pending()
        tasks.append(asyncio.create_task(rig.door.decide(request("mail.send", session_id="s1"))))
        await rig.pending(2)
        another = replace(ASKER, id="tok_another")
        for refused in (
            replace(session, trace_id=new_trace_id()),
            replace(request("mail.send"), principal=another),
        ):
            ruling = await asyncio.wait_for(rig.door.decide(refused), LIMIT)
            assert ruling.limit == "pending"
        for task in tasks:
            task.cancel()


async def test_one_session_has_so_many_questions_open_and_another_its_own(
    installation: Installation, tmp_path: Path
) -> None:
    async with open_door(installation, tmp_path, most_pending=1) as rig:
        first = asyncio.create_task(rig.door.decide(request("mail.send", session_id="s1", in_session=True)))
        [approval] = await rig.pending()
        ruling = await rig.door.decide(request("fs.write", session_id="s1", in_session=True))
        assert (ruling.outcome, ruling.limit, ruling.rule) == ("denied", "pending", "door:pending")
        assert ruling.message is not None
        assert await rig.steps(ruling.trace_id) == ["proposed", "decided/pending"]
        second = asyncio.create_task(rig.door.decide(request("mail.send", session_id="s2", in_session=True)))
        assert len(await rig.pending(2)) == 2
        assert (await rig.door.decide(request("fs.read", session_id="s1", in_session=True))).passed
        await rig.inbox.resolve(PERSON, approval.id, YES)
        assert (await first).passed
        second.cancel()
