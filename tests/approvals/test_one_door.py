"""INV-1 of the door: the same call under the same policies gets the same decision and the same trace, whichever way it
comes in. Policies, calls and answers are made up; limits count along the calls of an example."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.approvals.ways_to_the_door import (
    LIMIT,
    TOOLS,
    Told,
    Way,
    Wish,
    by_http,
    by_permission,
    by_run,
    by_terminal,
)

from legation.approvals.approval import ApprovalAnswer

pytestmark = pytest.mark.heavy

ACTIONS = ("allow", "deny", "supervisor", "human_approval")
WORDS = st.text("abc äß:{}\"'", min_size=1, max_size=12).map(str.strip).filter(bool)

conditions = st.sampled_from(
    [
        {"paths": {"under": "$WORKSPACE"}},
        {"not": {"paths": {"under": "$WORKSPACE"}}},
        {"command": {"glob": "git *"}},
        {"amount": {"<": 3}},
        {"amount": {"exists": False}},
        {"any": [{"path": {"glob": "**/*.py"}}, {"amount": 1}]},
    ]
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {"action": draw(st.sampled_from(ACTIONS))}
    match draw(st.sampled_from(["tools", "kind", None])):
        case "tools":
            rule["tools"] = draw(st.sampled_from(["*", "fs.*", "*.run", *TOOLS]))
        case "kind":
            rule["kind"] = draw(st.lists(st.sampled_from(list(TOOLS.values())), min_size=1, unique=True))
    if draw(st.booleans()):
        rule["when"] = draw(conditions)
    if draw(st.booleans()):
        rule["message"] = draw(WORDS)
    return rule


@st.composite
def policies(draw: st.DrawFn) -> str:
    policy: dict[str, Any] = {"name": "p", "agent": draw(st.sampled_from(["*", "claude", "cl*", "other"]))}
    policy["loop"] = draw(st.sampled_from(["off", {"same": 2, "within": "10s"}]))
    for limit in ("max_per_minute", "max_total"):
        if draw(st.integers(0, 3)) == 0:
            policy[limit] = draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        policy["spend"] = {"field": "amount", "per": "total", "limit": draw(st.integers(1, 4))}
    policy["rules"] = draw(st.lists(rules(), min_size=1, max_size=4))
    return json.dumps(policy)  # which is YAML


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    params: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "path": st.sampled_from(["a.py", "sub/b.txt", "../out.py", "/etc/passwd"]),
                "amount": st.integers(0, 5),
                "command": st.sampled_from(["git status", "git push && rm -r x", "ls"]),
                "note": st.text(max_size=5),
            },
        )
    )
    answer = ApprovalAnswer(
        approve=draw(st.booleans()), reasoning=draw(WORDS), message=draw(st.none() | WORDS)
    )
    return Wish(draw(st.sampled_from(list(TOOLS))), params, answer)


def come_in(policy: str, calls: list[Wish], *ways: Way) -> list[list[Told]]:
    async def bounded(folder: Path) -> list[list[Told]]:
        async with asyncio.timeout(LIMIT):
            return [await way(folder, policy, calls) for way in ways]

    with tempfile.TemporaryDirectory() as place:
        return asyncio.run(bounded(Path(place).resolve()))


def same(one: Told, other: Told) -> None:
    assert (one.outcome, one.by, one.rule, one.words) == (
        other.outcome,
        other.by,
        other.rule,
        other.words,
    )
    assert one.steps == other.steps


def as_considered(told: Told) -> None:
    """What would happen is what happened, but for what somebody said."""
    assert told.considered is not None
    policy, rule, words, limit = told.considered
    assert rule == told.rule
    match policy:
        case "allow":
            assert (told.outcome, limit) == ("approved", None)
        case "deny":
            assert (told.outcome, told.words) == ("denied", words)
        case _:
            assert "resolved" in [kept["step"] for kept, _ in told.steps]


MADE_UP = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(MADE_UP, max_examples=100)
@given(policies(), st.lists(wishes(), min_size=1, max_size=4))
def test_the_same_by_a_permission_by_a_run_and_at_the_terminal(policy: str, calls: list[Wish]) -> None:
    asked, run, typed = come_in(policy, calls, by_permission, by_run, by_terminal)
    for one, other, third in zip(asked, run, typed, strict=True):
        same(one, other)
        same(other, third)
        as_considered(other)


@settings(
    MADE_UP, max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # too slow to shrink
@given(policies(), st.lists(wishes(), min_size=1, max_size=4))
def test_the_same_over_http(policy: str, calls: list[Wish]) -> None:
    run, called = come_in(policy, calls, by_run, by_http)
    for one, other in zip(run, called, strict=True):
        same(one, other)
        as_considered(other)
        assert one.considered == other.considered


EVERY_END = """
name: p
max_total: 4
loop: off
rules:
  - {id: reads, tools: fs.read, action: allow}
  - {id: writes, tools: fs.write, action: supervisor}
  - {id: mails, tools: mail.send, action: human_approval, message: Ask before you write to people.}
"""


def test_every_end_that_a_call_can_have_is_among_them() -> None:
    """So that the two above compare something."""
    yes, no = ApprovalAnswer(approve=True, reasoning="fine"), ApprovalAnswer(approve=False, reasoning="no")
    calls = [
        Wish("fs.read", {"path": "a.py"}, yes),
        Wish("fs.write", {"path": "a.py"}, yes),
        Wish("mail.send", {}, no),
        Wish("shell.run", {"command": "ls"}, yes),
        Wish("fs.read", {"path": "a.py"}, yes),
    ]
    for told in come_in(EVERY_END, calls, by_permission, by_run, by_terminal, by_http):
        ends = [(each.outcome, each.by, each.rule) for each in told]
        assert ends == [
            ("approved", "policy", "p:reads"),
            ("approved", "person:tester", "p:writes"),
            ("denied", "person:tester", "p:mails"),
            ("denied", "policy", "default:no-match"),
            ("denied", "policy", "p:max-total"),
        ]
        steps = [[kept["step"] for kept, _ in each.steps] for each in told]
        assert steps[0] == steps[3] == steps[4] == ["proposed", "decided"]
        assert steps[1] == ["proposed", "decided", "escalated", "resolved", "consumed"]
        assert steps[2] == ["proposed", "decided", "resolved"]
