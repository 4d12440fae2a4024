"""A call's entry says who decided what, when and why: in the API, on disk and for telemetry alike."""

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.approvals.installation import (
    MINUTE,
    NO,
    NOW,
    PERSON,
    SECOND,
    SUPERVISOR,
    Installation,
    principal,
    proposal,
    write_file,
)

from legation.approvals.approval import Approval, ApprovalAnswer
from legation.approvals.trace import entries
from legation.approvals.trace.chain import Chain, Ledger, chains
from legation.approvals.trace.entries import TraceFilter
from legation.approvals.trace.export import ExportedStep, lines, lines_of, otel_attributes, verify_export
from legation.approvals.trace.step import (
    StepDraft,
    StepKind,
    TracedCall,
    decided,
    new_trace_id,
    proposed,
)
from legation.errors import InvalidParams, NotFound
from legation.store.secrets.vault import MAX_PAGE
from legation.wire.action import RuleAction

JQ = {
    "supervised": "[.[] | select(.supervisor_reasoning != null)]",
    "average": "[.[] | select(.supervisor_confidence > 0) | .supervisor_confidence] | add / length",
    "low": "[.[] | select(.supervisor_confidence > 0 and .supervisor_confidence < 0.85)]",
}


def check_the_jq_lines(body: bytes, confidences: list[float]) -> None:
    """The answers to the three questions, in Python; and by jq itself, where it is installed."""
    entries = json.loads(body)
    supervised = [each for each in entries if each["supervisor_reasoning"] is not None]
    sure = [each for each in entries if (each["supervisor_confidence"] or 0) > 0]
    low = [each for each in sure if each["supervisor_confidence"] < 0.85]
    average = sum(confidences) / len(confidences)
    assert sorted(each["supervisor_confidence"] for each in supervised) == sorted(confidences)
    assert sum(each["supervisor_confidence"] for each in sure) / len(sure) == pytest.approx(average)
    assert len(low) == len([each for each in confidences if each < 0.85])
    if not shutil.which("jq"):
        pytest.skip("held in Python, but jq itself is not installed; get it with apt install jq")

    def jq(line: str) -> object:
        return json.loads(subprocess.run(["jq", line], input=body, capture_output=True, check=True).stdout)

    assert jq(JQ["supervised"]) == supervised
    assert jq(JQ["average"]) == pytest.approx(average)
    assert jq(JQ["low"]) == low


def after(approval: Approval, **given: object) -> list[StepDraft]:
    """The tool was called and answered."""
    result = {"contents": {"result": {"ok": True}}, "status_code": 200, "latency_ms": 42} | given
    return [
        StepDraft(step=StepKind.EXECUTED, call=approval.call),
        StepDraft(step=StepKind.RETURNED, call=approval.call, **result),  # type: ignore[arg-type]
    ]


def allowed(
    tool: str = "filesystem.read", at: str = "/p/a", agent: str = "claude", verdict: RuleAction = "allow"
) -> list[StepDraft]:
    """A call that nobody was asked about."""
    action = write_file(at, tool, agent)
    call = TracedCall(trace_id=new_trace_id(), agent=agent, tool=tool, session_id="ses_1")
    drafts = [proposed(call, action, action.digest("v1")), decided(call, verdict, f"{agent}:rule-1", "v1")]
    if verdict == "allow":
        drafts.append(StepDraft(step=StepKind.RETURNED, call=call, status_code=200, latency_ms=7))
    return drafts


async def supervised(installation: Installation, answer: ApprovalAnswer, now: int = NOW) -> Approval:
    approval = await installation.ask(now=now, session_id="ses_1")
    await installation.answer(approval, answer, SUPERVISOR, now + 1500)
    if answer.approve:
        await installation.consume(approval, now + 1501)
        await installation.ledger.append("local", after(approval), now + 1550)
    return approval


async def test_d6_an_approved_call_has_its_approver_reason_status_and_latency(
    installation: Installation,
) -> None:
    said = ApprovalAnswer(approve=True, reasoning="in the project", confidence=0.95, claim="human:bob")
    approval = await supervised(installation, said)
    (entry,) = await installation.entries()
    assert msgspec.to_builtins(entry) == {
        "trace_id": approval.trace_id,
        "session_id": "ses_1",
        "agent_id": "claude",
        "tool": "filesystem.write_file",
        "params": {"path": "/p/main.go", "content": "package main"},
        "digest": approval.action_digest,
        "policy": "supervisor",
        "policy_rule": "claude:rule-2",
        "status_code": 200,
        "latency_ms": 42,
        "error": None,
        "timestamp": "2023-11-14T22:13:20Z",
        "approval_id": approval.id,
        "approval_status": "approved",
        "approved_by": "agent:supervisor",
        "approval_ms": 1500,
        "supervisor_reasoning": "in the project",
        "supervisor_confidence": 0.95,
        "turn_id": None,
        "tool_call_id": None,
        "reason": None,
        "approved_by_name": None,  # a supervisor has none
    }


async def test_d7_disk_api_and_telemetry_say_the_same(installation: Installation) -> None:
    said = ApprovalAnswer(approve=True, reasoning="in the project", confidence=0.95)
    approval = await supervised(installation, said)
    exported = [
        msgspec.json.decode(line, type=ExportedStep)
        async for line in lines(installation.database, installation.sealer, "local", "srv-1")
    ]
    assert [line.step.step for line in exported] == [
        "proposed", "decided", "resolved", "consumed", "executed", "returned"
    ]  # fmt: skip
    words = {
        (line.step.server, line.step.seq): {
            name: json.loads(bytes(content.value)) for name, content in line.content.items()
        }
        for line in exported
    }
    (shown,) = await installation.entries()
    assert entries.entry([line.step for line in exported], words) == shown
    attributes = otel_attributes(shown)
    assert attributes["legation.approval.by"] == "agent:supervisor"
    assert attributes["legation.supervisor.reasoning"] == "in the project"
    assert attributes["http.response.status_code"] == 200
    assert attributes["legation.approval.id"] == approval.id
    assert None not in attributes.values()
    assert words[("srv-1", 6)] == {"result": {"ok": True}}


async def test_a_pending_denied_expired_or_cancelled_call_says_so(installation: Installation) -> None:
    pending, denied, cancelled = [await installation.ask() for _ in range(3)]
    await installation.answer(denied, NO)
    await installation.do(installation.approvals.cancel, "local", [cancelled.id], "caller-gone", NOW + 9)
    shown = {entry.approval_id: entry for entry in await installation.entries()}
    assert [shown[each.id].approval_status for each in (pending, denied, cancelled)] == [
        "pending", "denied", "cancelled"
    ]  # fmt: skip
    assert shown[denied.id].approved_by == "user:usr_1"
    assert shown[cancelled.id].approved_by is None
    assert shown[pending.id].approval_ms is None


async def test_a_call_that_a_grant_let_pass_names_the_grant(installation: Installation) -> None:
    action = write_file()
    call = TracedCall(
        trace_id=new_trace_id(),
        agent="claude",
        tool=action.tool,
        approval_id="apr_1",
        turn_id="t1",
        tool_call_id="c1",
    )
    grant = principal("grant", "grt_1", 0)
    lifted = decided(call, "human_approval", "claude:rule-2", "v1", reason="granted", by=grant)
    await installation.ledger.append("local", [proposed(call, action, "d"), lifted], NOW)
    (entry,) = await installation.entries()
    assert (entry.policy, entry.approved_by, entry.reason) == ("human_approval", "grant:grt_1", "granted")
    assert (entry.approval_status, entry.turn_id, entry.tool_call_id) == (None, "t1", "c1")


async def test_the_reason_is_that_of_the_last_step_that_has_one(installation: Installation) -> None:
    approval = await installation.ask()
    door = principal("legation", "door", 2)
    await installation.do(
        installation.approvals.escalate, door, approval.id, None, NOW + 1, reason="no-supervisor"
    )
    (waiting,) = await installation.entries()
    await installation.do(installation.approvals.cancel, "local", [approval.id], "caller-gone", NOW + 9)
    (gone,) = await installation.entries()
    assert (waiting.reason, gone.reason) == ("no-supervisor", "caller-gone")


async def test_one_trace_has_its_steps_with_their_hashes_and_the_result(installation: Installation) -> None:
    approval = await supervised(installation, ApprovalAnswer(approve=True, reasoning="r", confidence=0.9))
    detail = await entries.detail(installation.database, installation.sealer, "local", approval.trace_id)
    (entry,) = await installation.entries()
    assert {name: getattr(detail, name) for name in entry.__struct_fields__} == {
        name: getattr(entry, name) for name in entry.__struct_fields__
    }
    steps = await installation.database.read(entries.steps_of, "local", approval.trace_id)
    assert [(step.step, step.hash) for step in detail.steps] == [(step.step, step.hash) for step in steps]
    assert [step.by for step in detail.steps if step.by] == ["agent:supervisor"]
    assert (detail.steps[0].server, detail.steps[0].at, detail.result) == (
        "srv-1", "2023-11-14T22:13:20Z", {"ok": True}
    )  # fmt: skip


async def test_a_trace_that_is_not_there_is_not_found(installation: Installation) -> None:
    (elsewhere, *_) = await installation.ledger.append("other", allowed(), NOW)
    for trace in (elsewhere.trace_id, "0" * 32, "", "'", "☺"):
        with pytest.raises(NotFound):
            await entries.detail(installation.database, installation.sealer, "local", trace)


def test_the_lines_for_jq_are_in_the_docs_as_the_seed_prints_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text("utf-8")
    assert all(f"jq '{line}'" in page for line in JQ.values())


async def test_an_export_of_all_chains_verifies_chain_by_chain(installation: Installation) -> None:
    second = Ledger(installation.database, Chain("srv-2", installation.sealer))
    for number in range(3):
        await installation.ledger.append("local", allowed(), NOW + number)
    await second.append("local", allowed(), NOW)
    await second.append("other", allowed(), NOW)
    place = (
        installation.database,
        installation.sealer,
        "local",
        await installation.database.read(chains, "local"),
    )
    exported = [line async for line in lines_of(*place)]
    bare = [line async for line in lines_of(*place, with_contents=False)]
    reports, without = verify_export(exported), verify_export(bare)
    assert [(report.server, report.steps, report.ok) for report in reports] == [
        ("srv-1", 9, True),
        ("srv-2", 3, True),
    ]
    assert [(report.checked, report.purged) for report in reports] == [(3, 0), (1, 0)]
    assert [(report.ok, report.checked, report.purged) for report in without] == [(True, 0, 3), (True, 0, 1)]
    assert b"package main" in b"".join(exported)
    assert b"package main" not in b"".join(bare)
    heads = {report.server: report.head for report in reports}
    cut = verify_export(exported[:9], heads)  # the whole second chain is missing
    assert [(report.server, report.ok) for report in cut] == [("srv-1", True), ("srv-2", False)]


async def test_a_call_that_nobody_was_asked_about_has_no_approval(installation: Installation) -> None:
    await installation.ledger.append("local", allowed(), NOW)
    await installation.ledger.append("local", allowed(verdict="deny"), NOW + 1)
    denied, entry = await installation.entries()
    assert (entry.policy, entry.policy_rule, entry.status_code) == ("allow", "claude:rule-1", 200)
    assert (entry.approval_id, entry.approval_status, entry.approved_by) == (None, None, None)
    assert (denied.policy, denied.status_code) == ("deny", None)


async def test_a_failed_call_has_its_error_and_its_text_is_sealed(installation: Installation) -> None:
    approval = await installation.answer(await installation.ask())
    failed = after(approval, contents={"error": "backend said: no such file"}, status_code=502)
    await installation.ledger.append("local", failed, NOW + 5)
    (entry,) = await installation.entries()
    assert (entry.error, entry.status_code) == ("backend said: no such file", 502)


async def test_only_supervisors_words_stand_as_a_supervisors(installation: Installation) -> None:
    """The seed's jq lines count whatever has supervisor fields: a person's reason is not one."""
    person = await installation.ask()
    await installation.answer(
        person, ApprovalAnswer(approve=True, reasoning="I looked", confidence=0.2), PERSON
    )
    silent = await installation.ask()
    await installation.answer(silent, ApprovalAnswer(approve=False), SECOND)
    shown = {entry.approval_id: entry for entry in await installation.entries()}
    assert (shown[person.id].supervisor_reasoning, shown[person.id].supervisor_confidence) == (None, None)
    assert (shown[silent.id].supervisor_reasoning, shown[silent.id].supervisor_confidence) == ("", None)


async def test_the_three_jq_lines_of_the_seed_give_the_right_answers(installation: Installation) -> None:
    for number, confidence in enumerate((0.95, 0.8, 0.6)):
        await supervised(
            installation, ApprovalAnswer(approve=True, reasoning="r", confidence=confidence), NOW + number
        )
    await installation.answer(
        await installation.ask(), ApprovalAnswer(approve=True, reasoning="mine", confidence=0.1), PERSON
    )
    await installation.ask()
    await installation.ledger.append("local", allowed(), NOW)
    body = msgspec.json.encode(await installation.entries())
    check_the_jq_lines(body, [0.95, 0.8, 0.6])


async def test_traces_are_chosen_by_agent_tool_and_time(installation: Installation) -> None:
    for number, (agent, tool) in enumerate([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]):
        await installation.ledger.append("local", allowed(tool, agent=agent), NOW + number)
    listed = {
        "agent a": await installation.entries(agent="a"),
        "tool x": await installation.entries(tool="x"),
        "both": await installation.entries(agent="b", tool="y"),
        "since": await installation.entries(since=NOW + 2),
        "session": await installation.entries(session="ses_1", since=NOW + 3),
        "session, agent and tool": await installation.entries(session="ses_1", agent="a", tool="y"),
        "no such session": await installation.entries(session="ses_2"),
        "no pattern": await installation.entries(tool="*"),
    }
    assert {name: [(entry.agent_id, entry.tool) for entry in found] for name, found in listed.items()} == {
        "agent a": [("a", "y"), ("a", "x")],
        "tool x": [("b", "x"), ("a", "x")],
        "both": [("b", "y")],
        "since": [("b", "y"), ("b", "x")],
        "session": [("b", "y")],
        "session, agent and tool": [("a", "y")],
        "no such session": [],
        "no pattern": [],
    }


async def test_pages_of_traces_miss_nothing_and_repeat_nothing(installation: Installation) -> None:
    made = []
    for number in range(8):
        steps = await installation.ledger.append("local", allowed(), NOW + number // 3)
        made.append(steps[0].trace_id)
    seen: list[str] = []
    after_ = None
    while True:
        page = await entries.entries(
            installation.database, installation.sealer, "local", TraceFilter(), 3, after_
        )
        seen += [entry.trace_id for entry in page.items]
        if (after_ := page.next) is None:
            break
    assert len(seen) == 8
    assert set(seen) == set(made)
    assert (set(seen[:2]), set(seen[2:5]), set(seen[5:])) == (set(made[6:]), set(made[3:6]), set(made[:3]))


@pytest.mark.parametrize("place", ["", "x", "12", "-abc", "1-a'b", "9" * 30 + "-ab"])
async def test_a_place_that_no_page_named_is_refused(installation: Installation, place: str) -> None:
    with pytest.raises(InvalidParams):
        await entries.entries(installation.database, installation.sealer, "local", TraceFilter(), 3, place)


async def test_the_recent_traces_of_an_agent_hold_no_arguments(installation: Installation) -> None:
    for number in range(12):
        await installation.ledger.append("local", allowed(), NOW + number)
    await installation.ledger.append("local", allowed(agent="codex"), NOW + 99)
    recent = await installation.database.read(entries.recent, "local", "claude")
    assert len(recent) == 10
    assert recent[0].timestamp == "2023-11-14T22:13:20.011Z"
    assert recent[0].__struct_fields__ == ("trace_id", "tool", "policy", "timestamp")


async def test_another_workspaces_traces_are_not_there(installation: Installation) -> None:
    steps = await installation.ledger.append("other", allowed(), NOW)
    assert await installation.entries() == []
    assert await installation.database.read(entries.steps_of, "local", steps[0].trace_id) == []
    assert await installation.database.read(entries.steps_of, "other", steps[0].trace_id) == steps


async def test_an_edited_call_is_two_entries_and_the_new_one_names_the_old(
    installation: Installation,
) -> None:
    old = await installation.ask()
    new = await installation.do(
        installation.approvals.edit, PERSON, old.id, proposal(write_file("/p/safe.go")), NOW + MINUTE
    )
    await installation.answer(new, now=NOW + MINUTE)
    second, first = await installation.entries()
    assert (first.approval_status, second.approval_status) == ("superseded", "approved")
    steps = await installation.database.read(entries.steps_of, "local", new.trace_id)
    assert steps[0].replaces == old.id


async def test_words_and_arguments_of_every_kind_come_back_as_they_were(installation: Installation) -> None:
    params = {"lone": "a\ud800", "big": 2**70, "deep": [{"x": None}], "é": "☺", "nul": "\x00"}
    await installation.ask(write_file().__class__(agent="claude", tool="t", params=params))
    (entry,) = await installation.entries()
    assert entry.params == params


async def test_a_value_that_is_too_large_is_refused_and_nothing_is_written(
    installation: Installation,
) -> None:
    huge = write_file("x" * (MAX_PAGE + 1))
    with pytest.raises(InvalidParams):
        await installation.ask(huge)
    assert (await installation.entries(), (await installation.verify()).steps) == ([], 0)
