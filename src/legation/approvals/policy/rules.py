"""Rules and policies, compiled, and the search for the rule that decides.

INV-P3  The policies are asked by how exactly they name the agent, their rules in the order they are written; the
        first that matches decides, and what none matches is denied.
INV-P4  A command line is decided part by part, and the strictest verdict counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from legation.approvals.policy.automaton import Budget
from legation.approvals.policy.conditions import PLACES, ActionView, Condition
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.patterns import go_glob, is_literal, literal_prefix
from legation.approvals.policy.shell.lines import prepare
from legation.approvals.policy.truth import NO, UNKNOWN, YES, Truth
from legation.wire.action import Action, RuleAction

EVERY: Final = "*"
RULE_ACTIONS: Final[tuple[RuleAction, ...]] = get_args(RuleAction)
STRICTNESS: Final = {action: rank for rank, action in enumerate(RULE_ACTIONS)}
NO_MATCH: Final = "no rule matches: what no policy names is denied"
UNCLEAR: Final = (
    "the call has arguments that look like a path, a command or an address, and nobody said what they are"
)
_SHELL: Final = "execute"
RULE_STEPS: Final = 5  # steps that a rule costs, whatever its condition
# Names come from agents, who can invent as many and as long ones as they like.
_KEPT_CALLS: Final = 4096
_KEPT_LENGTH: Final = 200
_MOST: Final = 1e15  # beyond it a float no longer counts in single cents

T = TypeVar("T")
RuleOutcome: TypeAlias = Literal["matches", "may match", "no match"]
UnaskedWord: TypeAlias = Literal["stop", "warn"]
"""What happens to a turn in which something was done that should have been asked about."""

_OUTCOMES: Final[dict[Truth, RuleOutcome]] = {YES: "matches", UNKNOWN: "may match", NO: "no match"}
_WORDS: Final[dict[Truth, str]] = {YES: "yes", UNKNOWN: "unknown", NO: "no"}


class NameSet(msgspec.Struct, frozen=True):
    """Names of agents or tools, as rules write them: globs, of which any may fit."""

    globs: tuple[str, ...]

    def holds(self, name: str) -> bool:
        return any(go_glob(glob).fullmatch(name) for glob in self.globs)


def specificity(glob: str) -> tuple[int, int]:
    """Sort the most specific first: an exact name, then the longest beginning, `*` last."""
    if is_literal(glob):
        return (0, 0)
    return (2, 0) if glob == EVERY else (1, -len(literal_prefix(glob)))


class Loop(msgspec.Struct, frozen=True):
    """The same call, `same` times `within` so many seconds, is a loop."""

    same: int = 3
    within: float = 10.0


class Spend(msgspec.Struct, frozen=True):
    """A sum over an argument. `tools` None: of every call that has it."""

    field: str
    per: Literal["day", "total"]
    limit: float
    tools: NameSet | None = None

    def amount(self, action: Action) -> float | None:
        """Tell what the call adds to the sum; None where that cannot be told, and the call is to be refused."""
        if self.tools is not None and not self.tools.holds(action.tool):
            return 0.0
        value: object = action.params
        for key in self.field.removeprefix("params.").split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return 0.0 if self.tools is None else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        # A negative amount would make room for another one.
        return float(value) if 0 <= value <= _MOST and math.isfinite(value) else None


class PolicyLimits(msgspec.Struct, frozen=True):
    max_per_minute: int | None = None
    max_total: int | None = None
    spend: tuple[Spend, ...] = ()
    loop: Loop | None = Loop()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The word of a rule on a call. `reason` is for the trace and holds no argument; `message` is for the agent."""

    action: RuleAction
    policy: str
    rule: str
    reason: str
    message: str | None = None
    timeout: float | None = None
    on_timeout: Literal["deny"] = "deny"
    reviewers: tuple[str, ...] = ()
    limits: PolicyLimits | None = None

    @property
    def name(self) -> str:
        return f"{self.policy}:{self.rule}"


DEFAULT: Final = Verdict(action="deny", policy="default", rule="no-match", reason=NO_MATCH)

DROPPED: Final = Verdict(
    action="deny",
    policy="default",
    rule="no-policy",
    reason="the policy that its run was submitted with is gone",
)


def stricter(one: Verdict, other: Verdict) -> Verdict:
    """Choose the stricter; the first where they are equally strict."""
    return other if STRICTNESS[other.action] > STRICTNESS[one.action] else one


class RuleStep(msgspec.Struct, frozen=True, kw_only=True):
    """One policy (`rule` None) or rule that was looked at. `why` may show arguments: for the one who asked."""

    policy: str
    rule: str | None
    outcome: RuleOutcome
    why: str
    action: RuleAction | None = None
    kind: str | None = None  # what the call was taken for
    part: str | None = None  # the simple command that it was looked at for
    place: str = ""  # file:line


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `kinds` empty: any. `verdict` is what it says where it matches."""

    verdict: Verdict
    tools: NameSet
    kinds: frozenset[str]
    when: Condition | None
    place: str  # file:line
    sees_command: bool = field(init=False)
    sees_places: bool = field(init=False)  # whether it looks at what an unclear call may hide

    def __post_init__(self) -> None:
        seen = frozenset(() if self.when is None else self.when.fields)
        object.__setattr__(self, "sees_command", "command" in seen)
        object.__setattr__(self, "sees_places", not PLACES.isdisjoint(seen))

    @property
    def id(self) -> str:
        return self.verdict.rule

    def names(self, tool: str, kind: str) -> bool:
        """Tell whether tool and kind fit, whatever the condition."""
        return self.tools.holds(tool) and (not self.kinds or kind in self.kinds)


class Policy(msgspec.Struct, frozen=True):
    name: str
    agent: str
    rules: tuple[Rule, ...]
    limits: PolicyLimits
    place: str
    unasked: UnaskedWord | None = None

    def covers(self, agent: str) -> bool:
        return self.agent == EVERY or NameSet((self.agent,)).holds(agent)


def kinds_of(action: Action) -> tuple[str, ...]:
    """List the kinds that a call is decided as: all of them, and the stricter counts."""
    # A kind is the agent's word, and some call a shell command a "read" after what it does.
    if action.command is None or action.kind == _SHELL:
        return (action.kind,)
    return (action.kind, _SHELL)


def views(action: Action, facts: Facts, kind: str, budget: Budget) -> Iterator[ActionView]:
    """List one for each simple command; one for a line that cannot be read, or where there is none."""
    whole = ActionView(action, facts, kind, budget=budget)
    if action.command is None:
        yield whole
    for text in action.commands:
        line = facts.line(text)
        of_line = whole.with_line(line)
        if not line.parts:
            yield of_line
        for part in line.parts:
            yield of_line.with_part(part)


def judge(
    rules: Sequence[Rule], see_command: bool, action: Action, facts: Facts, kind: str, budget: Budget
) -> Verdict:
    """Decide by the strictest over the parts of a command, where any rule looks at them."""
    if action.command is None or not see_command:
        return first_match(rules, ActionView(action, facts, kind, budget=budget))
    verdict: Verdict | None = None
    for view in views(action, facts, kind, budget):
        was_spent = budget.is_spent
        found = first_match(rules, view)
        verdict = found if verdict is None else stricter(verdict, found)
        if verdict.action == "deny" or was_spent:  # without a budget all parts are alike
            break
    return verdict or DEFAULT


def first_match(rules: Sequence[Rule], view: ActionView) -> Verdict:
    """Find the verdict. A rule that may match lets the search go on, but nothing milder than it comes out (INV-P1).

    An unclear call is asked about where it would be allowed by rules that look at paths, commands or addresses.
    """
    floor: Verdict | None = None
    looks = False
    for rule in rules:
        held = held_by(rule, view)
        looks = looks or rule.sees_places
        if held is NO:
            continue
        verdict = rule.verdict
        if held is YES:
            if looks and view.action.unclear:
                verdict = asked_about(verdict)
            return verdict if floor is None else stricter(verdict, floor)
        if verdict.action == "allow":
            continue
        verdict = msgspec.structs.replace(verdict, reason=_uncertain(view, verdict))
        if verdict.action == "deny":
            return verdict
        if floor is None or STRICTNESS[verdict.action] > STRICTNESS[floor.action]:
            floor = verdict
    if view.budget.is_spent:
        return msgspec.structs.replace(DEFAULT, reason=f"no rule matches for certain: {view.budget.why}")
    return DEFAULT


def held_by(rule: Rule, view: ActionView) -> Truth:
    """Tell whether the rule matches, as far as the budget reaches."""
    budget = view.budget
    budget.left -= RULE_STEPS
    held = YES if rule.when is None else rule.when.holds(view)
    if budget.left < 0 and budget.by is None:
        budget.by = rule.verdict.name
    return held


def asked_about(verdict: Verdict) -> Verdict:
    """Have a person asked, where the rule would have allowed it."""
    if verdict.action != "allow":
        return verdict
    reason = f"rule {verdict.rule} of policy {verdict.policy} would allow it, but {UNCLEAR}"
    return msgspec.structs.replace(verdict, action="human_approval", reason=reason)


def _uncertain(view: ActionView, verdict: Verdict) -> str:
    why = "something that its condition needs is missing or of another type"
    if view.budget.is_spent:
        why = view.budget.why
    elif view.line is not None and view.line.unreadable:
        why = f"the command cannot be read with certainty: {view.line.unreadable}"
    return f"rule {verdict.rule} may match, and that is enough: {why}"


def steps(policies: Iterable[Policy], action: Action, facts: Facts) -> Iterator[RuleStep]:
    """Explain why a call is decided as it is, rule by rule."""
    for policy in policies:
        if not policy.covers(action.agent):
            why = f"the agent {action.agent!r} does not fit {policy.agent!r}"
            yield RuleStep(policy=policy.name, rule=None, outcome="no match", why=why, place=policy.place)
    covering = [policy for policy in policies if policy.covers(action.agent)]
    see_command = any(rule.sees_command for policy in covering for rule in policy.rules)
    budget = Budget()
    for kind in kinds_of(action):
        whole = ActionView(action, facts, kind, budget=budget)
        for view in views(action, facts, kind, budget) if see_command else [whole]:
            was_spent = budget.is_spent
            yield from _search(covering, view)
            if was_spent:  # without a budget all parts are alike
                break


def _search(policies: list[Policy], view: ActionView) -> Iterator[RuleStep]:
    """Look at rules up to the one that ends the search."""
    looks = False
    for policy in policies:
        for rule in policy.rules:
            step = _step(policy, rule, view)
            looks = looks or (rule.sees_places and rule.names(view.action.tool, view.kind))
            if looks and view.action.unclear and step.outcome == "matches" and step.action == "allow":
                step = _asked_about(step, view.action)
            yield step
            if step.outcome == "matches" or (step.outcome == "may match" and step.action == "deny"):
                return


def _asked_about(step: RuleStep, action: Action) -> RuleStep:
    named = ", ".join(map(repr, action.unclear))
    return msgspec.structs.replace(
        step, action="human_approval", why=f"{step.why}; but {UNCLEAR}: {named} -> asked"
    )


def _step(policy: Policy, rule: Rule, view: ActionView) -> RuleStep:
    held, why = _judge(rule, view)
    return RuleStep(
        policy=policy.name,
        rule=rule.id,
        outcome=_OUTCOMES[held],
        why=why,
        action=rule.verdict.action,
        part=None if view.part is None else "".join("…" if piece is None else piece for piece in view.part),
        kind=view.kind,
        place=rule.place,
    )


def _judge(rule: Rule, view: ActionView) -> tuple[Truth, str]:
    if not rule.tools.holds(view.action.tool):
        return NO, f"the tool {view.action.tool!r} does not fit {', '.join(rule.tools.globs)}"
    if not rule.names(view.action.tool, view.kind):
        return NO, f"the kind {view.kind!r} is not {', '.join(sorted(rule.kinds))}"
    if rule.when is None:
        return YES, "tool and kind fit, and it has no condition"
    held = held_by(rule, view)
    if view.budget.is_spent:
        return held, view.budget.why
    # Said with steps of their own: the words must not change what comes of the rules that follow.
    told = replace(view, budget=Budget())
    words = [f"{found.words} -> {_WORDS[found.truth]}" for found in rule.when.findings(told)]
    return held, "; ".join(words)


class PolicySet:
    """All policies at once, and the one function that decides."""

    def __init__(self, policies: Iterable[Policy] = (), content: object = None) -> None:
        """`content` is what the version is made of: two sets that decide alike should have it alike."""
        self.policies: tuple[Policy, ...] = tuple(sorted(policies, key=lambda each: specificity(each.agent)))
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        self.version = hashlib.sha256(canonical.encode()).hexdigest()
        self._rules: dict[tuple[str, str, str], tuple[tuple[Rule, ...], bool]] = {}
        self._by_name: dict[str, PolicySet | None] = {}

    def decide(self, action: Action, facts: Facts, budget: Budget | None = None) -> Verdict:
        """Decide on a call. It looks at nothing outside but, through `facts`, at where paths lead. The policy of its run is
        asked besides: it makes the verdict stricter, and never milder."""
        verdict = self._decide(action, facts, budget or Budget())
        if facts.policy is None or verdict.action == "deny":
            return verdict
        besides = self.named(facts.policy)
        return DROPPED if besides is None else stricter(verdict, besides._decide(action, facts, Budget()))

    def named(self, name: str) -> PolicySet | None:
        """Find the policies of that name: those in force, else the one that ships."""
        if name not in self._by_name:
            found = [policy for policy in self.policies if policy.name == name]
            self._by_name[name] = PolicySet(found) if found else _shipped(name)
        return self._by_name[name]

    def covers(self, agent: str) -> bool:
        return any(policy.covers(agent) for policy in self.policies)

    def _decide(self, action: Action, facts: Facts, budget: Budget) -> Verdict:
        if action.command is None:
            rules, _ = self._relevant(action.agent, action.tool, action.kind)
            return first_match(rules, ActionView(action, facts, action.kind, budget=budget))
        found = (
            judge(*self._relevant(action.agent, action.tool, kind), action, facts, kind, budget)
            for kind in kinds_of(action)
        )
        return reduce(stricter, found)

    def by_name(self, action: Action) -> Verdict | None:
        """Find the verdict that agent, tool and kind alone lead to, if its rules were found before; None where more has to be
        looked at. It costs nothing and looks at nothing outside."""
        rules, _ = self._rules.get((action.agent, action.tool, action.kind), ((), False))
        if action.command is not None or not rules or rules[0].when is not None:
            return None
        return rules[0].verdict

    def explain(self, action: Action, facts: Facts | None = None) -> list[RuleStep]:
        """List every policy and rule that was looked at, in order. It shows arguments: only for the one who asks."""
        facts = facts or Facts()
        besides = None if facts.policy is None else self.named(facts.policy)
        both = (self.policies, () if besides is None else besides.policies)
        return [step for each in both for step in steps(each, action, facts)]

    @property
    def folders(self) -> tuple[str, ...]:
        """List the folders that rules name, as they are written: whoever asks for an agent on another machine tells where
        these lead there."""
        rules = (rule for policy in self.policies for rule in policy.rules if rule.when is not None)
        return tuple(sorted(frozenset[str]().union(*(rule.when.folders for rule in rules if rule.when))))

    def limits(self, agent: str) -> tuple[tuple[str, PolicyLimits], ...]:
        """List the limits of every policy that covers the agent, by the policy's name."""
        return tuple((policy.name, policy.limits) for policy in self.policies if policy.covers(agent))

    def unasked(self, agent: str) -> UnaskedWord | None:
        """Find the strictest word of the policies that cover the agent; None: none says anything."""
        said = {policy.unasked for policy in self.policies if policy.covers(agent)}
        return "stop" if "stop" in said else "warn" if "warn" in said else None

    def _relevant(self, agent: str, tool: str, kind: str) -> tuple[tuple[Rule, ...], bool]:
        """Find the rules that tool and kind leave, and whether any of them looks at commands."""
        found = self._rules.get((agent, tool, kind))
        if found is None:
            rules = tuple(self._named(agent, tool, kind))
            found = (rules, any(rule.sees_command for rule in rules))
            if len(self._rules) >= _KEPT_CALLS:
                self._rules.clear()
            if len(agent) + len(tool) + len(kind) <= _KEPT_LENGTH:
                self._rules[agent, tool, kind] = found
        return found

    def _named(self, agent: str, tool: str, kind: str) -> Iterator[Rule]:
        for policy in self.policies:
            if policy.covers(agent):
                for rule in policy.rules:
                    if rule.names(tool, kind):
                        yield rule
                        if rule.when is None:
                            return  # nothing behind it is ever reached


def _shipped(name: str) -> PolicySet | None:
    from legation.approvals.policy.load import load_text, starters  # nobody needs the parser before

    return next((load_text(each.text, name) for each in starters() if each.name == name), None)


# Verdicts off the loop.

# A decision looks at the disk, which may be slow or far away: never on the loop that serves everybody, and not in the
# threads that others need.
_JUDGES: Final = ThreadPoolExecutor(4, "legation-judge")


async def off_loop(work: Callable[..., T], *args: object) -> T:
    """Run what looks at where paths lead."""
    return await asyncio.get_running_loop().run_in_executor(_JUDGES, work, *args)


async def evaluate(policies: PolicySet, action: Action, facts: Facts) -> tuple[Verdict, Facts]:
    """Find the verdict, and the facts that it was found with: grants are asked with those, without another look."""
    known = policies.by_name(action) if facts.policy is None else None
    if known is not None and known.action in ("allow", "deny"):  # what is asked about has its paths looked up
        return known, facts.once()
    if action.command is not None:  # else there are no lines to read
        facts = await prepare(action, facts)
    seen = facts.once()
    return await off_loop(_judge_seen, policies, action, seen), seen


def _judge_seen(policies: PolicySet, action: Action, seen: Facts) -> Verdict:
    verdict = policies.decide(action, seen)
    if verdict.action in ("supervisor", "human_approval"):  # grants ask for it, and the loop must not look
        if seen.workspace is not None:
            seen.root("$WORKSPACE")
        seen.places(action.paths)
    return verdict
