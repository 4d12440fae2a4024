"""INV-P12: the steps of one decision are counted, and beyond them everything is unknown."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from tests.approvals.policy.rules import policy

from legation.agents.amp import tools as amp_tools
from legation.agents.opencode import tools as opencode_tools
from legation.approvals.policy.automaton import MAX_STEPS, Automaton, Budget
from legation.approvals.policy.load import EXAMPLE_FACTS, load_text
from legation.approvals.policy.patterns import parse_regex
from legation.approvals.policy.truth import NO, UNKNOWN, YES
from legation.errors import ConfigInvalid, InvalidParams
from legation.wire.acp.updates import ToolCall
from legation.wire.action import MAX_TOOL, Action, tool_name

HEAVY = ".*a.{400}"
LONG = "".join(random.Random(1).choices("ab", k=32 * 1024))  # it never repeats, so that no kept state helps
ALLOW: dict[str, Any] = {"action": "allow"}


def heavy(ruling: str, **more: Any) -> dict[str, Any]:
    """Values enough that no budget reaches, and none that matches: the rule ends in `!`."""
    return {"id": "heavy", "action": ruling, "when": {"text": {"regex": HEAVY + "!"}}, **more}


def long_call() -> Action:
    return Action(agent="a", tool="t", params={"text": [LONG] * 30})


def test_one_long_text_is_decided_and_costs_no_more_than_a_decision_may() -> None:
    automaton = Automaton(parse_regex(HEAVY))
    for end, expected in (("a" + "b" * 400, YES), ("b" * 401, NO)):
        budget = Budget()
        assert automaton.judge((LONG[: 31 * 1024] + end,), budget) is expected
        assert budget.left >= 0


def test_a_text_beyond_the_budget_is_unknown() -> None:
    automaton = Automaton(parse_regex(HEAVY))
    budget = Budget(10_000)
    assert automaton.judge((LONG,), budget) is UNKNOWN
    assert budget.is_spent
    assert automaton.judge(("b",), budget) is UNKNOWN  # it has nothing left for a short one either


def test_a_text_that_is_settled_early_costs_little() -> None:
    budget = Budget(20)
    assert Automaton(parse_regex("git .*")).judge(("git " + LONG[:30_000],), budget) is YES
    assert Automaton(parse_regex("git .*")).judge((LONG,), budget) is NO
    assert not budget.is_spent


def test_an_unknown_deny_is_not_passed_by() -> None:
    verdict = policy(heavy("deny"), ALLOW).decide(long_call(), EXAMPLE_FACTS)
    assert (verdict.action, verdict.rule) == ("deny", "heavy")


def test_an_unknown_question_is_asked() -> None:
    verdict = policy(heavy("human_approval"), ALLOW).decide(long_call(), EXAMPLE_FACTS)
    assert (verdict.action, verdict.rule) == ("human_approval", "heavy")


def test_an_unknown_allow_allows_nothing() -> None:
    verdict = policy(heavy("allow")).decide(long_call(), EXAMPLE_FACTS)
    assert verdict.action == "deny"
    assert f"rule p:heavy used up the {MAX_STEPS} steps" in verdict.reason


def test_a_negated_pattern_beyond_the_budget_is_unknown_too() -> None:
    allow = {"action": "allow", "when": {"not": {"text": {"regex": HEAVY + "!"}}}}
    assert policy(allow).decide(long_call(), EXAMPLE_FACTS).action == "deny"


def test_a_deny_behind_the_rule_that_used_up_the_budget_counts() -> None:
    """What it asks about is far from what cost so much: without steps it is unknown all the same."""
    denied = {"id": "later", "action": "deny", "when": {"amount": {">": 10}}}
    call = Action(agent="a", tool="t", params={"text": [LONG] * 30, "amount": 5})
    verdict = policy(heavy("allow"), denied, ALLOW).decide(call, EXAMPLE_FACTS)
    assert (verdict.action, verdict.rule) == ("deny", "later")
    assert "rule p:heavy used up" in verdict.reason


@pytest.mark.heavy
def test_the_budget_is_that_of_all_parts_of_a_command() -> None:
    """No part costs much, and there are many of them under many rules."""
    rules = [
        {"id": f"r{number}", "action": "deny", "when": {"command": {"regex": f".*x{number}y.*"}}}
        for number in range(600)
    ]
    line = "; ".join(f"echo {number:04}" for number in range(90))
    call = Action(agent="a", tool="t", kind="execute", command=line)
    verdict = policy(*rules, ALLOW).decide(call, EXAMPLE_FACTS)
    assert verdict.action == "deny"
    assert "used up" in verdict.reason


@pytest.mark.heavy
def test_a_call_is_decided_alike_whatever_was_decided_before_it() -> None:
    """States that are kept make a decision faster, and must not make another one of it."""
    rules = [
        {"id": f"r{number}", "action": "human_approval", "when": {"text": {"regex": f".*a.{{{number}}}!"}}}
        for number in range(2, 60)
    ]
    for length in range(20, 4000, 331):
        fresh, used = policy(*rules, ALLOW), policy(*rules, ALLOW)
        for number in range(3):
            used.decide(
                Action(agent="a", tool="t", params={"text": LONG[number : number + 900]}), EXAMPLE_FACTS
            )
        call = Action(agent="a", tool="t", params={"text": LONG[:length]})
        assert fresh.decide(call, EXAMPLE_FACTS) == used.decide(call, EXAMPLE_FACTS)


@pytest.mark.heavy
def test_ten_thousand_rules_are_within_the_budget() -> None:
    rules = [
        {"action": "deny", "when": {"command": {"glob": f"program{number} *"}}} for number in range(9_999)
    ]
    call = Action(
        agent="a", tool="t", kind="execute", command="git commit -m 'a message of some words' src/a.py"
    )
    verdict = policy(*rules, {"id": "last", "action": "allow"}).decide(call, EXAMPLE_FACTS)
    assert (verdict.action, verdict.rule) == ("allow", "last")


def test_an_explanation_names_the_rule_that_used_up_the_budget() -> None:
    policies = policy(
        heavy("human_approval"), {"id": "later", "action": "deny", "when": {"amount": 1}}, ALLOW
    )
    call = Action(agent="a", tool="t", params={"text": [LONG] * 30, "amount": 2})
    steps = policies.explain(call, EXAMPLE_FACTS)
    assert [(step.rule, step.outcome) for step in steps] == [("heavy", "may match"), ("later", "may match")]
    assert all("rule p:heavy used up" in step.why for step in steps)
    verdict = policies.decide(call, EXAMPLE_FACTS)
    assert (verdict.action, verdict.rule) == ("deny", "later")


def test_an_example_that_uses_up_the_budget_is_reported() -> None:
    text = "[" + ", ".join(f'"{LONG[:30_000]}"' for _ in range(30)) + "]"
    written = (
        "name: p\nrules:\n- id: heavy\n  action: deny\n  tools: t\n"
        f'  when: {{text: {{regex: "{HEAVY}!"}}}}\n  match:\n  - {{tool: t, params: {{text: {text}}}}}\n'
    )
    with pytest.raises(ConfigInvalid, match="cannot be decided: rule p:heavy used up"):
        load_text(written)


# Patterns of our own, on agents' texts: what costs the square of a length shows at this one, where what is linear takes
# some milliseconds.


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda n: tool_name("mcp__" + "a__" * n + "!"), id="tool name"),
        pytest.param(lambda n: amp_tools._PATCHED.findall("*** Add File: a" + " " * n + "b"), id="amp paths"),
        pytest.param(lambda n: amp_tools._ADDED.findall("*** Add File: a" + " " * n + "b"), id="amp texts"),
        pytest.param(lambda n: opencode_tools._DELETES.search("\n" * n), id="opencode"),
    ],
)
def test_our_own_patterns_are_linear(work: Any) -> None:
    started = time.thread_time()
    work(300_000)
    assert time.thread_time() - started < 20  # the square takes minutes


def test_a_tool_name_of_any_length_is_no_name() -> None:
    with pytest.raises(InvalidParams, match=f"more than {MAX_TOOL} characters"):
        Action.from_tool_call(
            "a", ToolCall(tool_call_id="1", title="t", name="x" * (MAX_TOOL + 1)), cwd="/workspace"
        )
