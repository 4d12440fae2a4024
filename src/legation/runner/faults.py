"""Faults of a model, as agents tell them in the error of a prompt: a usage limit, a key that is refused, a provider that is away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from legation.wire.acp.rpc import ErrorCode, RpcError

# Seconds to wait for a limit of which nobody says when it is over, by how often there was one.
PAUSES: Final = (60.0, 300.0, 900.0, 1800.0, 3600.0)
LONGEST_SECONDS: Final = 10**9  # a number above it is a time, one above that times 1,000 is in milliseconds

FaultKind = Literal["limit", "refused", "away"]
_LIMITS: Final = frozenset(
    ("rate_limit", "rate_limit_error", "usage_limit", "rateLimitExceeded", "usageLimitExceeded")
)
_REFUSED: Final = frozenset(
    ("authentication_failed", "authentication", "authentication_error", "unauthorized")
)
_AWAY: Final = frozenset(("server_error", "overloaded", "overloaded_error", "serverOverloaded"))
_CODES: Final[Mapping[FaultKind, str]] = {
    "limit": "legation/rate-limited",
    "refused": "legation/unauthenticated",
    "away": "legation/unavailable",
}


@dataclass(frozen=True, slots=True)
class ModelFault:
    """`over_at`: milliseconds since the epoch, where the agent has said when a limit is over."""

    kind: FaultKind
    over_at: int | None = None

    @property
    def code(self) -> str:
        return _CODES[self.kind]

    def until(self, number: int, now_ms: int) -> int:
        """Tell until when to wait for the limit, which is the `number`-th, from 1."""
        pause = PAUSES[min(number, len(PAUSES)) - 1]
        return self.over_at if self.over_at is not None else now_ms + round(pause * 1000)


def model_fault(error: RpcError, now_ms: int) -> ModelFault | None:
    """Read what an agent says of its model; None where it is something else."""
    data = error.data if isinstance(error.data, Mapping) else {}
    kinds = {data.get(name) for name in ("errorKind", "kind", "type") if isinstance(data.get(name), str)}
    status = next((data[name] for name in ("status", "httpStatus") if isinstance(data.get(name), int)), None)
    if kinds & _LIMITS or status == 429:
        return ModelFault("limit", _over_at(data, now_ms))
    if kinds & _REFUSED or status in (401, 403) or error.code == ErrorCode.AUTH_REQUIRED:
        return ModelFault("refused")
    if kinds & _AWAY or (status is not None and status >= 500):
        return ModelFault("away")
    return None


def _over_at(data: Mapping[str, object], now_ms: int) -> int | None:
    for name in ("resetsAt", "retryAfter"):
        value = data.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            continue
        if value < LONGEST_SECONDS:
            return now_ms + round(value * 1000)
        return round(value if value > LONGEST_SECONDS * 1000 else value * 1000)
    return None
