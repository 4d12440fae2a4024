"""Providers: what executes a run. The worker knows no more of one than this.

INV-Y1  Whatever a provider makes has a name that follows from the run and its attempt, and is in the journal before it is made.
        `prepare`, `create`, `cancel` and `clean` are safe to repeat, by another process too: what is there is found by its name.
INV-Y2  `create` never hands a prompt to an agent twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from legation.errors import (
    ConfigInvalid,
    InvalidParams,
    LegationError,
    NotFound,
    StorageFailed,
    TimedOut,
    Unavailable,
)
from legation.runs.run import Run
from legation.runs.states import ErrorClass, RunState
from legation.secret import Secret
from legation.store.database.transaction import Transaction
from legation.wire.api.runs import RunSpec


class StepFailed(Exception):
    """A step that cannot go on: the class, a code, and a reason without anything that somebody wrote."""

    def __init__(self, error_class: ErrorClass, code: str, reason: str) -> None:
        super().__init__(reason)
        self.error_class, self.code, self.reason = error_class, code, reason


_CLASSES: Final[tuple[tuple[type[LegationError], ErrorClass], ...]] = (
    (Unavailable, ErrorClass.UNAVAILABLE),
    (StorageFailed, ErrorClass.UNAVAILABLE),
    (TimedOut, ErrorClass.UNAVAILABLE),
    (ConfigInvalid, ErrorClass.UNAVAILABLE),
    (InvalidParams, ErrorClass.TENANT_PERMANENT),
    (NotFound, ErrorClass.TENANT_PERMANENT),
)


def failure_of(error: Exception) -> StepFailed:
    """Class an error. Of what is no error of ours the text is not kept: nobody knows what is in it."""
    if isinstance(error, StepFailed):
        return error
    if isinstance(error, LegationError):
        found = next((each for kind, each in _CLASSES if isinstance(error, kind)), ErrorClass.INTERNAL)
        return StepFailed(found, error.code, error.message)
    return StepFailed(
        ErrorClass.INTERNAL, type(error).__name__, "cannot go on: a defect; the worker's log says where"
    )


@dataclass(frozen=True, slots=True)
class RunResource:
    """A thing that is made for a run: `kind` says of what sort, `name` which."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RunJob:
    """A run with what was submitted and its secrets, opened for one step. `still_ours` raises where the lease no longer holds:
    asked once more between making a thing and having it act. `rest_only`: nobody wants the work any more, only what was not told of it."""

    run: Run
    spec: RunSpec
    token: Secret
    still_ours: Callable[[], Awaitable[object]]
    secrets: dict[str, Secret] = field(default_factory=dict, repr=False)
    rest_only: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """The standing of a run at its provider. `gone`: what should work on it is not there, and has not said how it ended."""

    kind: Literal["working", "ended", "gone"]
    outcome: RunState | None = None
    error_class: ErrorClass | None = None
    error_code: str | None = None
    error_reason: str | None = None
    heard: bool = True
    has_rest: bool = False  # of one that is gone: it may have left something that it never told
    waits_for: str | None = None  # an approval, of one that works
    paused: bool = False  # by a person
    limited_until: int | None = None  # a usage limit, of one that waits for its end


class Provider(Protocol):
    def resources(self, run: Run) -> tuple[RunResource, ...]:
        """Name what an attempt will need, in the order in which it is made; the last is what `create` makes."""

    def journal(self, run: Run, token: Secret, now_ms: int) -> Transaction[None]:
        """Write what must be on record before `create`: a part of the transaction that journals it."""

    async def prepare(self, run: Run, spec: RunSpec) -> None:
        """Make all that `create` needs."""

    async def find(self, run: Run) -> str | None:
        """Look for what `create` made, by its name; its id, whether or not it is still at work."""

    async def create(self, job: RunJob) -> str:
        """Have it worked on; the id of what does that. Where it was begun before, or is told so, only the rest is reported."""

    async def observe(self, run: Run) -> Observation: ...

    async def cancel(self, run: Run) -> None:
        """End the work on it, and come back when nothing works on it any more."""

    async def clean(self, run: Run, resource: RunResource) -> None:
        """Remove a resource; one that is not there is removed."""

    async def retain(self, run: Run, resource: RunResource) -> bool:
        """Keep a resource for whoever looks into it, without what may hold a secret; False of one that never stays."""

    async def asks_all(self, run: Run, spec: RunSpec) -> bool:
        """Tell whether its agent does nothing but read, search and think before an approval of ours lets it."""
