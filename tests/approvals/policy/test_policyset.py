"""INV-P3 and INV-P1, against an obvious and slow implementation of both."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.policy.rules import call, decide, policy

from legation.approvals.policy.load import EXAMPLE_FACTS, load_text
from legation.approvals.policy.rules import Loop, PolicyLimits, PolicySet, Spend
from legation.errors import ConfigInvalid
from legation.wire.action import Action

pytestmark = pytest.mark.heavy

STRICT = ["allow", "supervisor", "human_approval", "deny"]
Params = dict[str, Any]


def possible(when: Any, params: Params) -> set[bool]:
    """Every truth value that the condition could have, in as few words as possible."""
    if when is None:
        return {True}
    if "all" in when:
        sets = [possible(item, params) for item in when["all"]]
        return {all(row) for row in _rows(sets)}
    if "any" in when:
        sets = [possible(item, params) for item in when["any"]]
        return {any(row) for row in _rows(sets)}
    if "not" in when:
        return {not value for value in possible(when["not"], params)}
    field, op, value = when["field"], when["op"], when["value"]
    if op == "exists":
        return {(field in params) == value}
    actual: Any = params.get(field)
    if type(actual) is not type(value):
        return {True, False}
    return {{"==": actual == value, "!=": actual != value, "<": actual < value, ">": actual > value}[op]}


def _rows(sets: list[set[bool]]) -> list[list[bool]]:
    rows: list[list[bool]] = [[]]
    for values in sets:
        rows = [[*row, value] for row in rows for value in values]
    return rows


def reference(rules: list[dict[str, Any]], tool: str, params: Params) -> str:
    """The strictest of all that could happen."""
    if not rules:
        return "deny"
    first, rest = rules[0], rules[1:]
    if first["tools"] not in ("*", tool):
        return reference(rest, tool, params)
    outcomes: list[str] = []
    if True in possible(first.get("when"), params):
        outcomes.append(first["action"])
    if False in possible(first.get("when"), params):
        outcomes.append(reference(rest, tool, params))
    return max(outcomes, key=STRICT.index)


LEAVES = st.builds(
    lambda field, op_value: {"field": field, "op": op_value[0], "value": op_value[1]},
    st.sampled_from("xy"),
    st.one_of(
        st.tuples(st.sampled_from(["==", "!=", "<", ">"]), st.integers(0, 3)),
        st.tuples(st.sampled_from(["==", "!="]), st.sampled_from(["a", "b"]) | st.booleans()),
        st.tuples(st.just("exists"), st.booleans()),
    ),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda item: {"not": item}, inner)
        | st.builds(
            lambda key, items: {key: items},
            st.sampled_from(["all", "any"]),
            st.lists(inner, min_size=1, max_size=3),
        )
    ),
    max_leaves=4,
)
RULES = st.lists(
    st.fixed_dictionaries(
        {"tools": st.sampled_from(["*", "t", "u"]), "action": st.sampled_from(STRICT)},
        optional={"when": CONDITIONS},
    ),
    min_size=1,
    max_size=5,
)
PARAMS = st.dictionaries(
    st.sampled_from("xy"), st.integers(0, 3) | st.sampled_from(["a", "b"]) | st.booleans()
)


def build(rules: list[dict[str, Any]]) -> PolicySet:
    return load_text(yaml.safe_dump({"name": "p", "rules": rules}))


def action_of(tool: str, params: Params) -> Action:
    return Action(agent="a", tool=tool, params=params)


@given(RULES, st.sampled_from("tu"), PARAMS)
def test_the_decision_is_the_strictest_of_all_that_could_be(
    rules: list[dict[str, Any]], tool: str, params: Params
) -> None:
    assert build(rules).decide(action_of(tool, params), EXAMPLE_FACTS).action == reference(
        rules, tool, params
    )


@given(RULES, st.sampled_from("tu"), PARAMS)
def test_what_the_names_alone_decide_is_what_all_of_it_decides(
    rules: list[dict[str, Any]], tool: str, params: Params
) -> None:
    policies, action = build(rules), action_of(tool, params)
    assert policies.by_name(action) is None  # nothing is searched for on the loop
    decided = policies.decide(action, EXAMPLE_FACTS)
    fits = next((rule for rule in rules if rule["tools"] in ("*", tool)), None)
    assert policies.by_name(action) == (decided if fits is not None and "when" not in fits else None)


def test_what_has_a_command_is_never_decided_by_its_names() -> None:
    policies, action = policy({"action": "allow"}), call(tool="shell.run", command="rm -rf /")
    assert policies.decide(action, EXAMPLE_FACTS).action == "allow"
    assert action.command is not None
    assert policies.by_name(action) is None


@given(RULES, RULES, st.sampled_from("tu"), PARAMS)
def test_a_later_rule_never_changes_an_earlier_match(
    rules: list[dict[str, Any]], more: list[dict[str, Any]], tool: str, params: Params
) -> None:
    before = build(rules).decide(action_of(tool, params), EXAMPLE_FACTS)
    if before.policy != "default":
        after = build([*rules, *more]).decide(action_of(tool, params), EXAMPLE_FACTS)
        assert (after.name, after.action) == (before.name, before.action)


@given(RULES, st.sampled_from("tu"), PARAMS, st.sampled_from("xy"))
def test_leaving_a_field_out_gains_nothing(
    rules: list[dict[str, Any]], tool: str, params: Params, left_out: str
) -> None:
    """Where no rule asks for absence, a call without the field is decided no milder than with any value."""
    text = yaml.safe_dump(rules)
    if "exists" in text:
        return
    without = {key: value for key, value in params.items() if key != left_out}
    policies = build(rules)
    decided = STRICT.index(policies.decide(action_of(tool, without), EXAMPLE_FACTS).action)
    for value in (0, 1, 2, 3, "a", "b", True, False):
        filled = policies.decide(action_of(tool, {**without, left_out: value}), EXAMPLE_FACTS)
        assert decided >= STRICT.index(filled.action)


@given(RULES, st.sampled_from("tu"), PARAMS)
def test_the_explanation_ends_where_the_decision_was_made(
    rules: list[dict[str, Any]], tool: str, params: Params
) -> None:
    policies, action = build(rules), action_of(tool, params)
    verdict, steps = policies.decide(action, EXAMPLE_FACTS), policies.explain(action, EXAMPLE_FACTS)
    assert [step.rule for step in steps] == [f"rule-{number + 1}" for number in range(len(steps))]
    if verdict.policy == "default":
        assert len(steps) == len(rules)
    else:
        decisive = next(step for step in steps if step.rule == verdict.rule)
        assert decisive.outcome in ("matches", "may match")


def test_what_no_rule_matches_is_denied() -> None:
    verdict = decide(policy({"tools": "a", "action": "allow"}), "b")
    assert (verdict.action, verdict.name, verdict.limits) == ("deny", "default:no-match", None)
    assert decide(PolicySet(), "b").name == "default:no-match"


@pytest.mark.parametrize("word", ["denny", "supervise", "Allow", "ask", "", "allow "])
def test_d1_an_unknown_action_refuses_to_load(word: str) -> None:
    with pytest.raises(ConfigInvalid, match="unknown action"):
        policy({"tools": "*", "action": word})


def test_d1_supervisor_is_an_action() -> None:
    assert decide(policy({"action": "supervisor"}), "t").action == "supervisor"


def test_d24_a_tool_is_matched_by_its_whole_name() -> None:
    rules = policy({"tools": "read*", "action": "allow"})
    assert decide(rules, "read_file").action == "allow"
    assert decide(rules, "spreadsheet.delete_rows").action == "deny"


def test_a_decision_names_policy_and_rule() -> None:
    rules = policy(
        {"tools": "a", "action": "deny"}, {"id": "mine", "action": "human_approval", "timeout": "5m"}
    )
    assert decide(rules, "a").name == "p:rule-1"
    verdict = decide(rules, "b")
    assert (verdict.name, verdict.timeout, verdict.on_timeout) == ("p:mine", 300.0, "deny")


SEVERAL = """
policies:
  - {name: all, agent: "*", rules: [{tools: [x, y, z], action: deny}]}
  - {name: family, agent: "claude-*", rules: [{tools: y, action: supervisor}, {tools: x, action: supervisor}]}
  - {name: one, agent: claude-1, rules: [{tools: x, action: allow}]}
"""


def test_the_most_specific_agent_comes_first_and_no_match_falls_through() -> None:
    policies = load_text(SEVERAL)
    assert [each.name for each in policies.policies] == ["one", "family", "all"]
    expected = {
        ("claude-1", "x"): "one",
        ("claude-1", "y"): "family",
        ("claude-1", "z"): "all",
        ("claude-2", "x"): "family",
    }
    expected |= {("codex", "x"): "all", ("codex", "q"): "default"}
    for (agent, tool), name in expected.items():
        assert policies.decide(call(tool=tool, agent=agent), EXAMPLE_FACTS).policy == name


def test_the_reason_names_no_argument() -> None:
    rules = policy({"action": "deny", "when": {"token": {"<": 5}}})
    verdict = decide(rules, "t token=hunter2")
    assert verdict.action == "deny"
    assert "hunter2" not in verdict.reason
    assert any("hunter2" in step.why for step in rules.explain(call("t token=hunter2")))


def test_the_explanation_says_which_condition_failed_and_on_what_type() -> None:
    rules = policy({"action": "allow", "when": {"amount": {"<": 5}, "currency": "EUR"}}, agent="claude")
    (step,) = rules.explain(call(tool="t", agent="claude", params={"amount": "9", "currency": "USD"}))
    assert step.why == "amount < 5: is '9' (text) -> unknown; currency == EUR: is 'USD' (text) -> no"
    assert (step.outcome, step.rule, step.place) == ("no match", "rule-1", "policy:3")
    (other,) = rules.explain(call(tool="t", agent="codex"))
    assert other.why == "the agent 'codex' does not fit 'claude'"


def test_the_version_is_that_of_the_content() -> None:
    text = 'name: p\nrules: [{action: allow, tools: "x"}]\n'
    same = '# comment\nrules:\n- tools: x\n  action: allow\nname: "p"\n'
    assert load_text(text).version == load_text(same, "other file").version
    assert load_text(text).version != load_text(text.replace("allow", "deny")).version
    assert len(load_text(text).version) == 64


def test_limits_come_with_the_verdict_and_for_the_agent() -> None:
    rules = policy(
        {"action": "allow"},
        agent="claude*",
        max_per_minute=30,
        max_total=1000,
        spend={"field": "params.amount", "per": "day", "limit": 500, "tools": "refund"},
        loop={"same": 5, "within": "1m"},
    )
    limits = decide(rules, tool="t", agent="claude").limits
    assert limits is not None
    assert (limits.max_per_minute, limits.max_total, limits.loop) == (30, 1000, Loop(5, 60.0))
    assert rules.limits("claude-2") == (("p", limits),)
    assert rules.limits("codex") == ()


def test_d4_loop_detection_is_on_unless_it_is_switched_off() -> None:
    assert dict(policy({"action": "allow"}).limits("x"))["p"] == PolicyLimits(loop=Loop(3, 10.0))
    assert dict(load_text("name: p\nloop: off\nrules: [{action: allow}]").limits("x"))["p"].loop is None


@pytest.mark.parametrize(
    ("params", "of_all", "of_refunds"),
    [
        ({"amount": 5}, 5.0, 5.0),
        ({}, 0.0, None),
        ({"amount": -5}, None, None),
        ({"amount": "5"}, None, None),
        ({"amount": True}, None, None),
        ({"amount": float("inf")}, None, None),
        ({"amount": 10**400}, None, None),
    ],
)
def test_what_is_spent_is_a_plain_amount_or_a_refusal(
    params: Params, of_all: float | None, of_refunds: float | None
) -> None:
    action = Action(agent="a", tool="refund", params=params)
    assert Spend("amount", "day", 10).amount(action) == of_all
    tools = policy({"action": "allow", "tools": "refund"}).policies[0].rules[0].tools
    assert Spend("amount", "day", 10, tools).amount(action) == of_refunds
    assert Spend("amount", "day", 10, tools).amount(Action(agent="a", tool="other")) == 0.0


def test_invented_tool_names_do_not_fill_the_memory() -> None:
    rules = policy({"tools": "x*", "action": "allow"})
    for number in range(10_000):
        rules.decide(Action(agent="a", tool=f"x{number}"), EXAMPLE_FACTS)
    assert rules.decide(Action(agent="a", tool="x" * 100_000), EXAMPLE_FACTS).action == "allow"
    kept = rules._rules  # the only way to see what is kept
    assert len(kept) <= 4096
    assert all(len(tool) < 300 for _, tool, _ in kept)


def test_what_is_done_unasked_stops_if_one_policy_of_the_agent_says_so() -> None:
    def said(*words: str) -> str | None:
        texts = [f"name: p{number}\n{word}\nrules: [{{action: allow}}]" for number, word in enumerate(words)]
        return load_text("\n---\n".join(texts)).unasked("x")

    assert said("") is None
    assert said("unasked: warn") == "warn"
    assert said("unasked: warn", "unasked: stop", "") == "stop"
    assert said("unasked: warn", "unasked: stop\nagent: other") == "warn"
    with pytest.raises(ConfigInvalid, match="unknown unasked 'ignore'"):
        said("unasked: ignore")
