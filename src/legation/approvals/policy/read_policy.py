"""Policies and rules, as they are written."""

from __future__ import annotations

from typing import Final, Literal, cast

from legation.approvals.policy.document import Node
from legation.approvals.policy.names import EVERY, NameSet
from legation.approvals.policy.problems import shown
from legation.approvals.policy.read_condition import read_condition
from legation.approvals.policy.rule import Policy, Rule
from legation.approvals.policy.source import Source
from legation.approvals.policy.verdict import RULINGS, Limits, Loop, Ruling, Spend, UnaskedWord, Verdict
from legation.wire.acp.toolcall import TOOL_KINDS

POLICY_KEYS: Final = (
    "name",
    "description",
    "agent",
    "rules",
    "max_per_minute",
    "max_total",
    "spend",
    "loop",
    "unasked",
)
RULE_KEYS: Final = (
    "id",
    "tools",
    "kind",
    "action",
    "when",
    "timeout",
    "on_timeout",
    "message",
    "reviewers",
    "match",
    "not_match",
)
_ASKING: Final = frozenset({"supervisor", "human_approval"})
_RESERVED: Final = "default"  # default:no-match is what no policy says


def read_policy(source: Source, node: Node) -> Policy | None:
    """None where it cannot be used; the reasons are noted."""
    before = len(source.problems.found)
    parts = source.map(node, "a policy", POLICY_KEYS)
    if "name" not in parts or "rules" not in parts:
        missing = "name" if "name" not in parts else "rules"
        source.report(node.line, f"a policy without `{missing}`; write name and rules")
        return None
    name = source.name(parts["name"], "`name`") or ""
    if name == _RESERVED:
        source.report(parts["name"].line, f"the name {shown(name)} is taken; write another")
    agent = _agent(source, parts["agent"]) if "agent" in parts else EVERY
    limits = _limits(source, parts)
    unasked = source.word(parts["unasked"], "unasked", ("stop", "warn")) if "unasked" in parts else None
    if "description" in parts:
        source.text(parts["description"], "`description`")
    ids = _Ids(source)
    rules = [
        _rule(source, item, name, ids.next(item), limits) for item in source.items(parts["rules"], "`rules`")
    ]
    if len(source.problems.found) > before:
        return None
    return Policy(
        name,
        agent,
        tuple(rule for rule in rules if rule),
        limits,
        source.place(node),
        cast("UnaskedWord | None", unasked),
    )


def _agent(source: Source, node: Node) -> str:
    if isinstance(node.value, list):
        source.report(node.line, "`agent` is one glob; write a policy for each")
        return EVERY
    return next(iter(source.globs(node, "`agent`")), EVERY)


class _Ids:
    """A rule without an id has its place for one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lines: dict[str, int] = {}
        self._count = 0

    def next(self, rule: Node) -> str:
        self._count += 1
        given = rule.value.get("id") if isinstance(rule.value, dict) else None
        line = given.line if given else rule.line
        name = (self._source.name(given, "`id`") if given else None) or f"rule-{self._count}"
        if name in self._lines:
            self._source.report(
                line, f"the id {shown(name)} is that of the rule in line {self._lines[name]}; write another"
            )
        self._lines[name] = line
        return name


def _rule(source: Source, node: Node, policy: str, rule_id: str, limits: Limits) -> Rule | None:
    parts = source.map(node, "a rule", RULE_KEYS)
    if not parts:
        return None
    if "action" not in parts:
        source.report(node.line, f"a rule without `action`; write one of {', '.join(RULINGS)}")
        return None
    tools = source.globs(parts["tools"], "`tools`") if "tools" in parts else (EVERY,)
    kinds = source.words(parts["kind"], "kind", TOOL_KINDS) if "kind" in parts else ()
    when = read_condition(source, parts["when"]) if "when" in parts else None
    ruling = source.word(parts["action"], "action", RULINGS)
    verdict = _verdict(source, parts, policy, rule_id, cast("Ruling | None", ruling) or "deny", limits)
    return Rule(verdict, NameSet(tools), frozenset(kinds), when, source.place(node))


def _verdict(
    source: Source, parts: dict[str, Node], policy: str, rule_id: str, ruling: Ruling, limits: Limits
) -> Verdict:
    for key in ("timeout", "on_timeout", "reviewers"):
        if key in parts and ruling not in _ASKING:
            source.report(
                parts[key].line,
                f"`{key}` in a rule that asks nobody; leave it out, or write action: supervisor",
            )
    if "on_timeout" in parts:
        source.word(parts["on_timeout"], "on_timeout", ("deny",))
    return Verdict(
        action=ruling,
        policy=policy,
        rule=rule_id,
        reason=f"rule {rule_id} of policy {policy} matches",
        message=source.text(parts["message"], "`message`") if "message" in parts else None,
        timeout=source.duration(parts["timeout"], "`timeout`") if "timeout" in parts else None,
        reviewers=source.names(parts["reviewers"], "`reviewers`") if "reviewers" in parts else (),
        limits=limits,
    )


def _limits(source: Source, parts: dict[str, Node]) -> Limits:
    return Limits(
        max_per_minute=_count(source, parts, "max_per_minute"),
        max_total=_count(source, parts, "max_total"),
        spend=tuple(_spends(source, parts["spend"])) if "spend" in parts else (),
        loop=_loop(source, parts["loop"]) if "loop" in parts else Loop(),
    )


def _count(source: Source, parts: dict[str, Node], key: str) -> int | None:
    return source.count(parts[key], f"`{key}`") if key in parts else None


def _spends(source: Source, node: Node) -> list[Spend]:
    found = []
    for item in source.one_or_more(node):
        parts = source.map(item, "`spend`", ("field", "per", "limit", "tools"))
        if not {"field", "per", "limit"} <= parts.keys():
            source.report(
                item.line, "`spend` needs field, per and limit; write {field: amount, per: day, limit: 500}"
            )
            continue
        field = source.text(parts["field"], "`field`")
        per = source.word(parts["per"], "per", ("day", "total"))
        limit = source.number(parts["limit"], "`limit`")
        tools = source.globs(parts["tools"], "`tools`") if "tools" in parts else None
        if field and per and limit is not None:
            named = NameSet(tools) if tools else None
            found.append(Spend(field, cast("Literal['day', 'total']", per), float(limit), named))
    return found


def _loop(source: Source, node: Node) -> Loop | None:
    if node.value in ("off", False):
        return None
    if not isinstance(node.value, dict):
        source.report(node.line, "`loop` is neither a map nor off; write {same: 3, within: 10s} or off")
        return None
    parts = source.map(node, "`loop`", ("same", "within"))
    same = source.count(parts["same"], "`same`", 2) if "same" in parts else Loop().same
    within = source.duration(parts["within"], "`within`", 86400.0) if "within" in parts else Loop().within
    return Loop(same or 2, within or 1.0)
