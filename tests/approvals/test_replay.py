"""What a changed policy would have decided on the recorded calls, and how often each rule did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.installation import NOW, Installation, principal

from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.policy.load import load_text
from legation.approvals.policy.rules import PolicySet
from legation.approvals.request import action_of, context_of
from legation.approvals.trace import replay as replaying
from legation.approvals.trace.entries import TraceFilter
from legation.approvals.trace.replay import hits, replay
from legation.approvals.trace.step import StepDraft, TracedCall, decided, new_trace_id, proposed
from legation.wire import jsontext
from legation.wire.action import Action
from legation.wire.api.approvals import Replay

pytestmark = pytest.mark.heavy

OLD = load_text(
    """
name: claude
agent: claude
rules:
  - {id: reads, kind: read, action: allow}
  - {id: shell, kind: execute, action: human_approval}
  - {id: never, tools: nothing.*, action: deny}
"""
)
NEW = load_text(
    """
name: claude
agent: claude
rules:
  - {id: secrets, kind: read, when: {field: paths, op: under, value: $HOME/.ssh}, action: deny}
  - {id: reads, kind: read, when: {field: paths, op: under, value: $WORKSPACE}, action: allow}
  - {id: tests, kind: execute, when: {field: command, op: glob, value: "pytest*"}, action: allow}
  - {id: shell, kind: execute, action: human_approval}
"""
)
FACTS = Facts(workspace="/w/project", cwd="/w/project", home="/home/ada", resolve=as_named)


def read(path: str) -> Action:
    return Action(agent="claude", tool="Read", kind="read", params={"file_path": path}, paths=(path,))


def run(command: str) -> Action:
    return Action(agent="claude", tool="Bash", kind="execute", params={"command": command}, command=command)


def drafts(action: Action, policies: PolicySet = OLD, facts: Facts = FACTS) -> list[StepDraft]:
    """As the door writes them."""
    call = TracedCall(trace_id=new_trace_id(), agent=action.agent, tool=action.tool)
    verdict = policies.decide(action, facts)
    return [
        proposed(call, action, action.digest(policies.version), context=context_of(action, facts)),
        decided(call, verdict.action, verdict.name, policies.version),
    ]


async def record(installation: Installation, *actions: Action, at: int = NOW) -> list[str]:
    traces = []
    for number, action in enumerate(actions):
        steps = await installation.ledger.append("local", drafts(action), at + number)
        traces.append(steps[0].trace_id)
    return traces


async def replayed(
    installation: Installation, policies: PolicySet = NEW, limit: int = 100, **wanted: object
) -> Replay:
    chosen = TraceFilter(**wanted)  # type: ignore[arg-type]
    return await replay(installation.database, installation.sealer, "local", policies, chosen, limit)


async def test_what_would_be_decided_otherwise_is_named_the_newest_first(installation: Installation) -> None:
    same, ssh, _other, tests = await record(
        installation, read("/w/project/a.py"), read("/home/ada/.ssh/id"), run("make"), run("pytest -q")
    )
    found = await replayed(installation)
    assert (found.calls, found.unknown, found.limited, found.differing) == (4, 0, 0, 2)
    assert found.counts == {"human_approval -> allow": 1, "allow -> deny": 1}
    assert found.version == NEW.version
    assert [(each.trace_id, each.was, each.was_rule, each.now, each.now_rule) for each in found.changed] == [
        (tests, "human_approval", "claude:shell", "allow", "claude:tests"),
        (ssh, "allow", "claude:reads", "deny", "claude:secrets"),
    ]
    assert found.changed[0].timestamp == "2023-11-14T22:13:20.003Z"
    assert same not in {each.trace_id for each in found.changed}


async def test_lines_that_take_the_parser_are_replayed_as_they_would_be_decided(
    installation: Installation,
) -> None:
    lines = [
        "[[ -f a ]] && pytest -q",
        "diff <(pytest a) <(pytest b)",
        "[[ -f a ]] && rm -r a",
        "eval pytest",
    ]
    passing, *_ = await record(installation, *map(run, lines))
    policies = load_text(
        "name: p\nrules:\n  - {kind: execute, action: allow, when: {command: {glob: ['pytest*', '\\[\\[ *']}}}\n"
        "  - {action: human_approval}\n"
    )
    found = await replayed(installation, policies)
    assert [(each.trace_id, each.now) for each in found.changed] == [(passing, "allow")]


async def test_the_policy_of_that_day_changes_nothing(installation: Installation) -> None:
    await record(
        installation, read("/etc/passwd"), run("rm -rf x"), Action(agent="claude", tool="t", kind="fetch")
    )
    found = await replayed(installation, OLD)
    assert (found.calls, found.differing, found.changed) == (3, 0, [])


async def test_only_the_wanted_calls_and_no_more_than_the_limit_are_looked_at(
    installation: Installation,
) -> None:
    await record(installation, *[read(f"/etc/{number}") for number in range(5)], run("pytest"))
    assert (await replayed(installation, tool="Read")).differing == 5
    assert (await replayed(installation, since=NOW + 4)).calls == 2
    assert (await replayed(installation, agent="codex")).calls == 0
    few = await replayed(installation, limit=3)
    assert (few.calls, few.differing) == (3, 3)
    assert few.changed[0].tool == "Bash"


async def test_many_calls_are_taken_in_batches_and_each_of_them_once(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "BATCH", 4)
    monkeypatch.setattr(replaying, "MOST_SHOWN", 7)
    traces = []
    for number in range(10):  # several in one millisecond
        traces += await record(installation, read(f"/etc/{number}"), at=NOW + number // 3)
    found = await replayed(installation)
    assert (found.calls, found.differing, len(found.changed)) == (10, 10, 7)
    assert len({each.trace_id for each in found.changed}) == 7
    assert found.changed[0].trace_id == traces[-1]


async def test_what_was_purged_is_counted_as_unknown(installation: Installation) -> None:
    await record(installation, read("/etc/passwd"))
    await installation.sql("delete from content_key where workspace_id = 'local'")
    found = await replayed(installation)
    assert (found.calls, found.unknown, found.differing) == (1, 1, 0)


async def test_what_a_limit_stopped_is_not_decided_again(installation: Installation) -> None:
    for rule, reason in [("claude:loop", "loop"), ("claude:max-per-minute", "per-minute"), ("a:loop", None)]:
        first, _ = drafts(read("/w/project/x"))
        stopped = decided(first.call, "deny", rule, OLD.version, reason=reason)
        await installation.ledger.append("local", [first, stopped], NOW)
    found = await replayed(installation)
    assert (found.calls, found.limited) == (3, 2)
    assert [(each.was_rule, each.now) for each in found.changed] == [
        ("a:loop", "allow")
    ]  # an owner's own rule


async def test_a_grant_does_not_hide_what_the_policy_said(installation: Installation) -> None:
    first, _ = drafts(run("make"))
    lifted = decided(
        first.call,
        "human_approval",
        "claude:shell",
        "v1",
        reason="granted",
        by=principal("grant", "grt_1", 0),
    )
    await installation.ledger.append("local", [first, lifted], NOW)
    assert (await replayed(installation)).differing == 0


async def test_another_workspaces_calls_are_not_replayed(installation: Installation) -> None:
    await installation.ledger.append("other", drafts(read("/etc/passwd")), NOW)
    assert (await replayed(installation)).calls == 0


async def test_a_replay_writes_nothing(installation: Installation) -> None:
    await record(installation, read("/etc/passwd"))
    before = await installation.verify()
    await replayed(installation)
    assert await installation.verify() == before


async def test_hits_list_every_rule_in_force_and_those_that_are_gone(installation: Installation) -> None:
    await record(installation, read("/a"), read("/b"), run("make"), Action(agent="x", tool="t"))
    first, _ = drafts(read("/c"))
    gone = decided(first.call, "deny", "old:rule", "v0")
    await installation.ledger.append("local", [first, gone], NOW + 9)
    await installation.ledger.append("other", drafts(read("/c")), NOW)
    found = await installation.database.read(hits, "local", OLD)
    assert [(each.policy_rule, each.action, each.hits, each.last_at) for each in found] == [
        ("claude:reads", "allow", 2, "2023-11-14T22:13:20.001Z"),
        ("claude:shell", "human_approval", 1, "2023-11-14T22:13:20.002Z"),
        ("claude:never", "deny", 0, None),
        ("default:no-match", "deny", 1, "2023-11-14T22:13:20.003Z"),
        ("old:rule", None, 1, "2023-11-14T22:13:20.009Z"),
    ]
    later = await installation.database.read(hits, "local", OLD, NOW + 1)
    assert {each.policy_rule: each.hits for each in later if each.hits} == {
        "claude:reads": 1, "claude:shell": 1, "default:no-match": 1, "old:rule": 1
    }  # fmt: skip


async def test_hits_and_the_calls_of_a_session_come_from_their_indexes(installation: Installation) -> None:
    if installation.database.dialect != "sqlite":
        pytest.skip("Postgres scans a table that is this small, and is right")
    plans = {
        "trace_decided": "select policy_rule, count(*), max(at) from trace_step where workspace_id = 'local' "
        "and step = 'decided' and at >= 0 and policy_rule is not null group by policy_rule",
        "trace_call_by_session": "select trace_id, at from trace_step where workspace_id = 'local' and "
        "step = 'proposed' and session_id = 's' and at >= 0 and (at, trace_id) < (9, 'x') "
        "order by at desc, trace_id desc limit 5",
    }
    for index, query in plans.items():
        rows = await installation.sql(f"explain query plan {query}")
        assert index in " ".join(row["detail"] for row in rows)


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=20)  # lone surrogates too
PLACES = st.none() | st.just("/w/project")


@given(
    paths=st.lists(TEXTS, max_size=3).map(tuple),
    command=st.none() | TEXTS,
    urls=st.lists(TEXTS, max_size=2).map(tuple),
    kind=st.sampled_from(["read", "edit", "execute", "fetch", "other"]),
    places=st.tuples(PLACES, PLACES, PLACES),
)
def test_a_call_comes_back_from_its_context_as_it_was(
    paths: tuple[str, ...],
    command: str | None,
    urls: tuple[str, ...],
    kind: str,
    places: tuple[str | None, str | None, str | None],
) -> None:
    facts = Facts(*places, as_named)
    action = Action(
        agent="claude", tool="t", kind=kind, params={"a": 1}, paths=paths, command=command, urls=urls
    )
    context = context_of(action, facts)
    assert (context is None) == (not paths and command is None and not urls and not any(places))
    kept = None if context is None else jsontext.read(jsontext.write(context))
    assert action_of("claude", "t", kind, {"a": 1}, kept) == (action, facts)  # type: ignore[arg-type]
