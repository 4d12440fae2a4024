"""Examples of rules, which are checked whenever those are loaded: as they would be decided, and no dearer than there are many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from legation.approvals.policy import rules
from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.conditions import ActionView
from legation.approvals.policy.load import (
    EXAMPLE_FACTS,
    ExampleDecider,
    ExampleFolders,
    load_text,
    parse_call,
)
from legation.approvals.policy.rules import EVERY, PolicySet, Rule
from legation.approvals.policy.shell.lines import prepare_here
from legation.approvals.policy.truth import Truth

TOOLS = ["*", "a*", "ab", "a?c", "[ab]x", "*b", "read"]
CONDITIONS = [
    "paths: {glob: '/a/**'}", "paths: {glob: ['/a/b', '**/b']}", "paths: {glob: '/a?'}", r"paths: {glob: '/\\*/b'}",
    "paths: {glob: '/[ab]/b'}", "paths: {under: /a}", "paths: {under: [/a/b, $WORKSPACE]}", "paths: {under: '~/x'}", "paths: {under: /}",
    "paths: {'==': /a/b}", "command: {glob: 'git *'}", "command: {glob: ['git', 'rm *']}", "command: {glob: 'g*'}",
    "command: {glob: '* -rf *'}", "x: {exists: true}", "x: 1",
]  # fmt: skip
CALLS = [
    "read /a/b", "read /a /ab", "read /a/../b", "read ~/x/y", "read ~nobody/x", "read b", "read $WORKSPACE/a", "edit /c",
    "$ git status", "$ git", "$ git $X", "$ $X -rf /", "$ git a && rm -rf b", "$ cat <<E", "$ gita", "$ if", "ab x=1", "ax", "abc x=2", "bx",
    {"tool": "ab", "kind": "execute", "command": "git a", "path": "/a/b"}, {"tool": "ab", "kind": "read"},
    {"tool": "read", "kind": "execute", "command": "rm x", "params": {"path": "/a", "x": 1}},
]  # fmt: skip


@st.composite
def conditions(draw: st.DrawFn) -> str:
    one = st.sampled_from(CONDITIONS).map(lambda text: f"{{{text}}}")
    joined = st.tuples(st.sampled_from(["all", "any"]), st.lists(one, min_size=1, max_size=3)).map(
        lambda pair: f"{{{pair[0]}: [{', '.join(pair[1])}]}}"
    )
    return draw(st.one_of(one, joined, one.map(lambda text: f"{{not: {text}}}")))


@st.composite
def rule_lines(draw: st.DrawFn) -> str:
    tools = draw(st.lists(st.sampled_from(TOOLS), min_size=1, max_size=2))
    action = draw(st.sampled_from(["allow", "deny", "human_approval"]))
    when = draw(st.one_of(st.just(""), conditions().map(lambda text: f", when: {text}")))
    return f"tools: {tools}, action: {action}{when}"


@given(st.lists(rule_lines(), min_size=1, max_size=6), st.sampled_from(CALLS))
def test_an_example_is_decided_as_the_call_would_be(lines: list[str], call: object) -> None:
    """Whichever rules were left out, for they cannot match."""
    written = "".join(f"- {{id: r{number}, {line}}}\n" for number, line in enumerate(lines))
    [policy] = load_text(f"name: p\nrules:\n{written}").policies
    action = parse_call(call, ExampleFolders())
    whole = PolicySet([replace(policy, agent=EVERY)])
    expected = whole.decide(action, prepare_here(action, EXAMPLE_FACTS))
    assert ExampleDecider(policy).decide(action, Budget()) == expected


# Many rules, each with its example.


def many(count: int, rule: str) -> str:
    return "name: p\nrules:\n" + "".join(f"- {{id: r{n}, {rule.format(n=n)}}}\n" for n in range(count))


MANY = {
    "tools": 'tools: "svc{n}-*", action: allow, match: "svc{n}-get a=1"',
    "folders": 'kind: read, action: allow, when: {{paths: {{under: "$WORKSPACE/d{n}"}}}}, match: "read d{n}/x"',
    "paths": 'kind: read, action: allow, when: {{paths: {{glob: "/d{n}/**"}}}}, match: "read /d{n}/x"',
    "commands": 'kind: execute, action: allow, when: {{command: {{glob: "do{n} *"}}}}, match: "$ do{n} it && do{n}"',
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", MANY)
def test_twice_as_many_rules_with_an_example_each_are_twice_the_work(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """10,000 globs took 42 s."""
    looks: list[str] = []
    held_by, names = rules.held_by, Rule.names

    def held(rule: Rule, view: ActionView) -> Truth:
        looks.append("held")
        return held_by(rule, view)

    def named(rule: Rule, tool: str, kind: str) -> bool:
        looks.append("named")
        return names(rule, tool, kind)

    monkeypatch.setattr(rules, "held_by", held)
    monkeypatch.setattr(Rule, "names", named)
    counts = []
    for count in (300, 600):
        looks.clear()
        load_text(many(count, MANY[kind]))
        counts.append(len(looks))
    assert 2 <= counts[0] / 300 <= 40
    assert counts[1] <= 2.2 * counts[0]


@pytest.mark.heavy
def test_2000_rules_may_have_an_example_each() -> None:
    """They were refused: four million checks would have taken too long."""
    assert len(load_text(many(2000, MANY["tools"])).policies[0].rules) == 2000
