"""Rules and policies, compiled."""

from __future__ import annotations

from dataclasses import dataclass, field

from legation.approvals.policy.condition import Condition
from legation.approvals.policy.fields import PLACES
from legation.approvals.policy.names import EVERY, NameSet
from legation.approvals.policy.verdict import Limits, UnaskedWord, Verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """`kinds` empty: any. `verdict` is what it says where it matches."""

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
        """Whether tool and kind fit, whatever the condition."""
        return self.tools.holds(tool) and (not self.kinds or kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    agent: str
    rules: tuple[Rule, ...]
    limits: Limits
    place: str
    unasked: UnaskedWord | None = None

    def covers(self, agent: str) -> bool:
        return self.agent == EVERY or NameSet((self.agent,)).holds(agent)
