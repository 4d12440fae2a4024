"""Policies, rules and their conditions, as they are written.

when: {amount: {"<": 500}}                              a field, an operator, a value
when: {field: params.amount, op: "<", value: 500}       the same, spelt out
when: {currency: EUR, country: [DE, FR]}                `==` and `in`; several fields: all of them
when: {any: [{...}, {...}]}                             also `all` and `not`
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, cast

from legation.approvals.policy import conditions
from legation.approvals.policy.automaton import Automaton, PatternTooLarge
from legation.approvals.policy.conditions import (
    BUILT_IN,
    OPS,
    Comparison,
    Condition,
    Existence,
    Joined,
    Not,
    Op,
    Test,
    reader,
)
from legation.approvals.policy.document import MAX_TEXT, Node, SourceFile, nearest, shown, unknown
from legation.approvals.policy.facts import VARIABLES
from legation.approvals.policy.patterns import BadGlob, BadRegex, Style, literal_prefix
from legation.approvals.policy.rules import (
    EVERY,
    RULE_ACTIONS,
    Loop,
    NameSet,
    Policy,
    PolicyLimits,
    Rule,
    Spend,
    UnaskedWord,
    Verdict,
)
from legation.approvals.policy.truth import NO, YES, Truth, truth
from legation.wire.acp.updates import TOOL_KINDS
from legation.wire.action import RuleAction, sort_of

_SPELT_OUT: Final = ("field", "op", "value", "missing")
_JOINS: Final = ("all", "any", "not")
_PARAM: Final = re.compile(r"(?:params\.)?[^\s.]+(?:\.[^\s.]+)*")
_PATHS: Final = frozenset({"paths", "cwd"})
_NEAR: Final = 0.85  # so near to a field's name is a slip, not an argument
_NOT_SLIPS: Final = frozenset({"path", "url", "host", "tools"})
_MISPLACED: Final = re.compile(r"[|;&\n\"'`]|(?<!^)[<>]")
_EXACT: Final = frozenset({"paths", "command", "urls", "hosts", "agent", "tool", "cwd"})


def read_condition(source: SourceFile, node: Node) -> Condition | None:
    """Read a condition; None where it cannot be used, and the reasons are noted."""
    if isinstance(node.value, list):
        return _join(source, "all", node)
    if not isinstance(node.value, dict) or not node.value:
        source.report(node.line, 'a condition is no map; write one like {amount: {"<": 500}}')
        return None
    if "field" in node.value or "op" in node.value:
        return _spelt_out(source, node)
    return _all_of([_member(source, key, inner) for key, inner in node.value.items()])


def _member(source: SourceFile, key: str, node: Node) -> Condition | None:
    if key in _JOINS:
        return _join(source, key, node)
    return _field(source, key, node)


def _join(source: SourceFile, key: str, node: Node) -> Condition | None:
    if key == "not":
        inner = read_condition(source, node)
        return None if inner is None else Not(inner)
    found = [read_condition(source, item) for item in source.items(node, f"`{key}`")]
    good = tuple(item for item in found if item is not None)
    if not good or len(good) < len(found):
        return None
    return Joined(good, YES if key == "any" else NO)


def _spelt_out(source: SourceFile, node: Node) -> Condition | None:
    parts = source.map(node, "a condition", _SPELT_OUT)
    for needed in ("field", "op", "value"):
        if needed not in parts:
            source.report(node.line, f"a condition without `{needed}`; write field, op and value")
            return None
    field, op = source.text(parts["field"], "`field`"), parts["op"]
    if field is None:
        return None
    return _comparisons(source, field, {op.raw: parts["value"]}, op.line, parts.get("missing"))


def _field(source: SourceFile, field: str, node: Node) -> Condition | None:
    if isinstance(node.value, list):
        return _comparisons(source, field, {"in": node}, node.line, None)
    if not isinstance(node.value, dict):
        return _comparisons(source, field, {"==": node}, node.line, None)
    ops = {key: inner for key, inner in node.value.items() if key != "missing"}
    return _comparisons(source, field, ops, node.line, node.value.get("missing"))


def _comparisons(
    source: SourceFile, field: str, ops: dict[str, Node], line: int, missing: Node | None
) -> Condition | None:
    problem = _field_problem(field)
    if problem:
        source.report(line, problem)
        return None
    if not ops:
        source.report(line, f"a condition on `{field}` without an operator; write one of {' '.join(OPS)}")
        return None
    worth = None if missing is None else _missing(source, missing)
    return _all_of([_comparison(source, field, op, value, worth) for op, value in ops.items()])


def _all_of(found: list[Condition | None]) -> Condition | None:
    good = tuple(item for item in found if item is not None)
    if len(good) < len(found):
        return None
    return good[0] if len(good) == 1 else Joined(good)


def _field_problem(field: str) -> str | None:
    if field in BUILT_IN:
        return None
    if not _PARAM.fullmatch(field) or field == "params":
        return f"{shown(field)} is no field; write one like params.amount, or one of {', '.join(BUILT_IN)}"
    if field.startswith("params.") or field in _NOT_SLIPS:
        return None
    head = field.split(".", 1)[0]
    near = nearest(field, BUILT_IN, _NEAR) or nearest(head, ("params",), _NEAR)
    if near:
        return f"unknown field {shown(field)}; did you mean {near!r}? (an argument of that name is params.{field})"
    return None


def _missing(source: SourceFile, node: Node) -> Truth | None:
    if isinstance(node.value, bool):
        return truth(node.value)
    source.report(
        node.line, "`missing` is neither true nor false; write what the condition is without the field"
    )
    return None


def _comparison(
    source: SourceFile, field: str, op: str, node: Node, missing: Truth | None
) -> Condition | None:
    if op not in OPS:
        source.report(node.line, unknown("operator", op, OPS))
        return None
    read = reader(field)
    if op == "exists":
        if isinstance(node.value, bool):
            return Existence(field, node.value, read)
        source.report(node.line, "`exists` takes true or false")
        return None
    try:
        test = _test(source, field, cast("Op", op), node)
    except (BadGlob, BadRegex) as error:
        source.report(node.line, f"malformed {op} {shown(node.plain())}: {error}")
        return None
    except PatternTooLarge:
        source.report(node.line, f"too large a {op}; write it shorter, or as several rules")
        return None
    if test is None:
        return None
    begins = _beginnings(source, field, op, node)
    return Comparison(field, cast("Op", op), _written(node), read, test, missing, begins)


def _beginnings(source: SourceFile, field: str, op: str, node: Node) -> tuple[str, ...]:
    if (field, op) == ("paths", "under"):
        return tuple(str(item.value) for item in source.one_or_more(node))
    if op != "glob" or field not in ("paths", "command"):
        return ()
    # A last ` *` of a command is also nothing.
    found = tuple(literal_prefix(str(item.value)).rstrip(" ") for item in source.one_or_more(node))
    return found if all(found) else ()


def _written(node: Node) -> str:
    return str(node.plain()) if isinstance(node.value, list) else node.raw


def _test(source: SourceFile, field: str, op: Op, node: Node) -> Test | None:
    if op in ("<", "<=", ">", ">="):
        bound = source.number(node, f"the value of `{op}`")
        if bound is None or not _is_argument(source, field, op, node.line):
            return None
        return conditions.ordered(op, bound)
    if op == "under":
        return _under(source, field, node)
    if op in ("glob", "regex"):
        return _pattern(source, field, op, node)
    return _equality(source, field, op, node)


def _is_argument(source: SourceFile, field: str, op: str, line: int) -> bool:
    if field in BUILT_IN:
        source.report(line, f"`{field}` cannot be compared by `{op}`; it is text")
        return False
    return True


def _equality(source: SourceFile, field: str, op: str, node: Node) -> Test | None:
    if op == "in" and not isinstance(node.value, list):
        source.report(node.line, "`in` takes a list; write [one, two]")
        return None
    if op != "in" and isinstance(node.value, list):
        source.report(node.line, f"`{op}` takes one value; write `in` for a list")
        return None
    values = [item.value for item in (source.items(node, "`in`") if op == "in" else [node])]
    if not values or any(value is None or isinstance(value, dict | list) for value in values):
        source.report(
            node.line, f"`{op}` takes text, numbers, true or false; for a missing field write exists: false"
        )
        return None
    scalars = cast("list[conditions.Scalar]", values)
    if not all(_is_meant(source, field, op, value, node) for value in scalars):
        return None
    if field in BUILT_IN and not _fitting(source, field, scalars, node.line):
        return None
    if field == "command":
        test = conditions.fits_command(conditions.literals([str(each) for each in scalars]))
        return conditions.differs(test) if op == "!=" else test
    return conditions.unequal(scalars[0]) if op == "!=" else conditions.one_of(scalars)


def _is_meant(source: SourceFile, field: str, op: str, value: conditions.Scalar, node: Node) -> bool:
    """Refuse `*` and `?` in an equality, which takes them as they are."""
    # Whoever writes one means a pattern, and a deny would deny nothing.
    wild = r"[*]" if field == "urls" else r"[*?]"  # an address may well have a `?`
    if not isinstance(value, str) or not _is_exact(field) or not re.search(wild, value):
        return True
    pattern = value if field not in ("paths", "cwd") or value.startswith(("/", "**")) else f"**/{value}"
    meant = f"{{{field}: {{glob: {_quoted(pattern)}}}}}"
    meant = f"{{not: {meant}}}" if op == "!=" else meant
    literal = _quoted(re.sub(r"([\\*?\[])", r"\\\1", value))
    source.report(
        node.line,
        f"`{op}` on `{field}` takes {shown(value)} as it is, `*` and `?` too; write {meant}, "
        f"or {{glob: {literal}}} if the character itself is meant",
    )
    return False


def _is_exact(field: str) -> bool:
    """Tell whether a pattern is what people write there: paths, commands, addresses and names, also as an argument."""
    if field in BUILT_IN:
        return field in _EXACT
    return sort_of(field.rsplit(".", 1)[-1]) in ("path", "command")


def _quoted(text: str) -> str:
    # As YAML takes it: in single quotes a backslash is a character like any other.
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _fitting(source: SourceFile, field: str, values: list[conditions.Scalar], line: int) -> bool:
    """Tell whether the field could ever have such a value."""
    for value in values:
        if not isinstance(value, str):
            source.report(line, f"`{field}` is text; write {shown(str(value))} in quotes")
            return False
        if field == "kind" and value not in TOOL_KINDS:
            source.report(line, unknown("kind", value, TOOL_KINDS))
            return False
        if field == "command" and not _is_simple(source, value, line):
            return False
    return True


def _under(source: SourceFile, field: str, node: Node) -> Test | None:
    if field in BUILT_IN and field not in _PATHS:
        source.report(node.line, f"`{field}` cannot be under a folder; write a condition on `paths`")
        return None
    folders = source.names(node, "a folder of `under`")
    for folder in folders:
        head = folder.split("/", 1)[0]
        if ("$" in folder and head not in VARIABLES) or "$" in folder[len(head) :]:
            source.report(node.line, unknown("variable", head, VARIABLES))
            return None
        if (head.startswith("~") and head != "~") or "*" in folder or "\0" in folder:
            source.report(
                node.line, f"{shown(folder)} is no folder; write one like $WORKSPACE/src, ~/notes or /srv"
            )
            return None
    return conditions.Under(tuple(folders)) if len(folders) == len(source.one_or_more(node)) else None


def _pattern(source: SourceFile, field: str, op: str, node: Node) -> Test | None:
    items = source.one_or_more(node)
    texts = [item.value for item in items if isinstance(item.value, str) and 0 < len(item.value) <= MAX_TEXT]
    if len(texts) < len(items):
        source.report(node.line, f"`{op}` takes text of 1 to {MAX_TEXT} characters, or a list of it")
        return None
    if op == "glob" and not all(_is_of_use(source, field, text, node.line) for text in texts):
        return None
    automaton = conditions.globs(texts, _style(field)) if op == "glob" else conditions.regexes(texts)
    return _fits(field)(automaton)


def _fits(field: str) -> Callable[[Automaton], Test]:
    if field == "command":
        return conditions.fits_command
    return conditions.fits_path if field in _PATHS else conditions.fits


def _style(field: str) -> Style:
    return "line" if field == "command" else "url" if field == "urls" else "path"


def _is_of_use(source: SourceFile, field: str, text: str, line: int) -> bool:
    # A pattern that can never match is a mistake, and in a deny a dangerous one.
    if field in _PATHS and not text.startswith(("/", "**")):
        source.report(
            line, f"the glob {shown(text)} matches no path, they begin with `/`; write {shown('**/' + text)}"
        )
        return False
    if field == "urls" and "://" not in text and not text.startswith("**"):
        source.report(
            line, f"the glob {shown(text)} matches no address; write one like 'https://example.com/**'"
        )
        return False
    return field != "command" or _is_simple(source, text, line)


def _is_simple(source: SourceFile, text: str, line: int) -> bool:
    if _MISPLACED.search(text):
        source.report(
            line,
            f"{shown(text)} matches no command: each is seen alone, without quotes, `|`, `;` and `&&`; "
            "write a pattern for each, and `> file` for a redirection",
        )
        return False
    return True


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


def read_policy(source: SourceFile, node: Node) -> Policy | None:
    """Read a policy; None where it cannot be used, and the reasons are noted."""
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


def _agent(source: SourceFile, node: Node) -> str:
    if isinstance(node.value, list):
        source.report(node.line, "`agent` is one glob; write a policy for each")
        return EVERY
    return next(iter(source.globs(node, "`agent`")), EVERY)


class _Ids:
    """The ids of the rules of a policy: one without an id has its place for one."""

    def __init__(self, source: SourceFile) -> None:
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


def _rule(source: SourceFile, node: Node, policy: str, rule_id: str, limits: PolicyLimits) -> Rule | None:
    parts = source.map(node, "a rule", RULE_KEYS)
    if not parts:
        return None
    if "action" not in parts:
        source.report(node.line, f"a rule without `action`; write one of {', '.join(RULE_ACTIONS)}")
        return None
    tools = source.globs(parts["tools"], "`tools`") if "tools" in parts else (EVERY,)
    kinds = source.words(parts["kind"], "kind", TOOL_KINDS) if "kind" in parts else ()
    when = read_condition(source, parts["when"]) if "when" in parts else None
    action = source.word(parts["action"], "action", RULE_ACTIONS)
    verdict = _verdict(source, parts, policy, rule_id, cast("RuleAction | None", action) or "deny", limits)
    return Rule(verdict, _named(tuple(tools)), _kinds(tuple(kinds)), when, source.place(node))


# Most rules name the same few, and each of these is looked through for garbage.


@lru_cache(maxsize=1024)
def _named(globs: tuple[str, ...]) -> NameSet:
    return NameSet(globs)


@lru_cache(maxsize=1024)
def _kinds(kinds: tuple[str, ...]) -> frozenset[str]:
    return frozenset(kinds)


def _verdict(
    source: SourceFile,
    parts: dict[str, Node],
    policy: str,
    rule_id: str,
    action: RuleAction,
    limits: PolicyLimits,
) -> Verdict:
    for key in ("timeout", "on_timeout", "reviewers"):
        if key in parts and action not in _ASKING:
            source.report(
                parts[key].line,
                f"`{key}` in a rule that asks nobody; leave it out, or write action: supervisor",
            )
    if "on_timeout" in parts:
        source.word(parts["on_timeout"], "on_timeout", ("deny",))
    return Verdict(
        action=action,
        policy=policy,
        rule=rule_id,
        reason=f"rule {rule_id} of policy {policy} matches",
        message=source.text(parts["message"], "`message`") if "message" in parts else None,
        timeout=source.duration(parts["timeout"], "`timeout`") if "timeout" in parts else None,
        reviewers=source.names(parts["reviewers"], "`reviewers`") if "reviewers" in parts else (),
        limits=limits,
    )


def _limits(source: SourceFile, parts: dict[str, Node]) -> PolicyLimits:
    return PolicyLimits(
        max_per_minute=_count(source, parts, "max_per_minute"),
        max_total=_count(source, parts, "max_total"),
        spend=tuple(_spends(source, parts["spend"])) if "spend" in parts else (),
        loop=_loop(source, parts["loop"]) if "loop" in parts else Loop(),
    )


def _count(source: SourceFile, parts: dict[str, Node], key: str) -> int | None:
    return source.count(parts[key], f"`{key}`") if key in parts else None


def _spends(source: SourceFile, node: Node) -> list[Spend]:
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


def _loop(source: SourceFile, node: Node) -> Loop | None:
    if node.value in ("off", False):
        return None
    if not isinstance(node.value, dict):
        source.report(node.line, "`loop` is neither a map nor off; write {same: 3, within: 10s} or off")
        return None
    parts = source.map(node, "`loop`", ("same", "within"))
    same = source.count(parts["same"], "`same`", 2) if "same" in parts else Loop().same
    within = source.duration(parts["within"], "`within`", 86400.0) if "within" in parts else Loop().within
    return Loop(same or 2, within or 1.0)
