"""What policies say: verdicts, the limits that go with them, and the steps that led there."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import msgspec

from legation.approvals.policy.names import NameSet
from legation.wire.action import Action

Ruling = Literal["allow", "supervisor", "human_approval", "deny"]
RULINGS: Final[tuple[Ruling, ...]] = get_args(Ruling)  # from the mildest to the strictest
STRICTNESS: Final = {ruling: rank for rank, ruling in enumerate(RULINGS)}

NO_MATCH: Final = "no rule matches: what no policy names is denied"


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
        """What the call adds to the sum; None where that cannot be told, and the call is to be refused."""
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


_MOST: Final = 1e15  # beyond it a float no longer counts in single cents


class Limits(msgspec.Struct, frozen=True):
    max_per_minute: int | None = None
    max_total: int | None = None
    spend: tuple[Spend, ...] = ()
    loop: Loop | None = Loop()


UnaskedWord = Literal["stop", "warn"]
"""What happens to a turn in which something was done that should have been asked about."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is for the trace and holds no argument; `message` is for the agent."""

    action: Ruling
    policy: str
    rule: str
    reason: str
    message: str | None = None
    timeout: float | None = None
    on_timeout: Literal["deny"] = "deny"
    reviewers: tuple[str, ...] = ()
    limits: Limits | None = None

    @property
    def name(self) -> str:
        return f"{self.policy}:{self.rule}"


DEFAULT: Final = Verdict(action="deny", policy="default", rule="no-match", reason=NO_MATCH)


def stricter(one: Verdict, other: Verdict) -> Verdict:
    """The first where they are equally strict."""
    return other if STRICTNESS[other.action] > STRICTNESS[one.action] else one


Outcome = Literal["matches", "may match", "no match"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One policy (`rule` None) or rule that was looked at. `why` may show arguments: for the one who asked."""

    policy: str
    rule: str | None
    outcome: Outcome
    why: str
    action: Ruling | None = None
    kind: str | None = None  # what the call was taken for
    part: str | None = None  # the simple command that it was looked at for
    place: str = ""  # file:line
