"""States of a run, what moves it from one to another, and the classes of failures; docs/reference/run-states.md is drawn from it.

INV-U1  A run's state changes by `TABLE` alone, in `move`, and only whoever holds its lease writes it.
INV-U2  A run that has failed has exactly one class; nothing else has any.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from legation.errors import Conflict
from legation.states import ActWord, StateWord

if TYPE_CHECKING:
    from legation.wire.api.runs import RunStatus


class RunState(StateWord):
    """State of a run. `status` is its name in seed 004's successor, which is what the API shows as `status`."""

    status: RunStatus

    QUEUED = "queued", "queued", "it waits for a worker, or for a slot of its workspace"
    PREPARING = (
        "preparing",
        "provisioning",
        "it is bound to a machine; its attempt is written down, then its folders are made",
    )
    STARTING = "starting", "session_created", "its runner is written down, then started"
    RUNNING = "running", "provider_running", "its runner is there and has the prompt"
    WAITING = "waiting", "provider_idle", "for an answer to an approval, of a supervisor or a person"
    PAUSED = "paused", "provider_idle", "by a person, until they let it go on"
    SUSPENDED = (
        "suspended",
        "provider_rescheduled",
        "by a usage limit of its provider, until that is over: its runner waits with the agent's session",
    )
    CANCELLING = "cancelling", "cancelling", "its runner was told to stop"
    CLEANING = (
        "cleaning",
        "cleaning_up",
        "it has its outcome; what was made for it is removed, its secrets in any case",
    )
    SUCCEEDED = "succeeded", "succeeded", "its agent said that the prompt is complete"
    FAILED = "failed", "failed", "for the reason of its class"
    TIMED_OUT = "timed_out", "timed_out", "its time was up"
    CANCELLED = "cancelled", "cancelled", "somebody asked for that"


class RunAct(ActWord):
    ADMIT = "admit", "its workspace has a slot for it"
    PREPARE = "prepare", "all that it needs is there"
    START = "start", "its runner was started, or found"
    ASK = "ask", "its agent waits for an approval"
    ANSWER = "answer", "none is waited for any more"
    PAUSE = "pause", "a person has it stop for a while"
    GO_ON = "go on", "a person lets a paused one go on"
    LIMIT = "limit", "its provider has said that a usage limit is reached, and until when"
    RESUME = "resume", "a limit is over, or a person resumes a failed one"
    RESTART = "restart", "its machine or its runner was lost before the prompt can have had an effect"
    CANCEL = "cancel", "somebody asked for that, or its time is up"
    END = "end", "its runner has said how the prompt ended, or can no longer say so"
    CLEAN = "clean", "what was made for it is gone, or is kept as it should be"


TERMINAL: Final = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.CANCELLED})

_WITH_RUNNER: Final = {
    RunAct.RESTART: RunState.QUEUED,
    RunAct.CANCEL: RunState.CANCELLING,
    RunAct.END: RunState.CLEANING,
}
# From where, by what, to where (None: to its outcome).
TABLE: Final[Mapping[RunState, Mapping[RunAct, RunState | None]]] = {
    RunState.QUEUED: {RunAct.ADMIT: RunState.PREPARING, RunAct.CANCEL: RunState.CLEANING},
    RunState.PREPARING: {
        RunAct.PREPARE: RunState.STARTING,
        RunAct.RESTART: RunState.QUEUED,
        RunAct.CANCEL: RunState.CLEANING,
        RunAct.END: RunState.CLEANING,  # what it needs is not to be had
    },
    RunState.STARTING: {RunAct.START: RunState.RUNNING, **_WITH_RUNNER},
    RunState.RUNNING: {
        RunAct.ASK: RunState.WAITING,
        RunAct.PAUSE: RunState.PAUSED,
        RunAct.LIMIT: RunState.SUSPENDED,
        **_WITH_RUNNER,
    },
    RunState.WAITING: {RunAct.ANSWER: RunState.RUNNING, RunAct.PAUSE: RunState.PAUSED, **_WITH_RUNNER},
    RunState.PAUSED: {RunAct.GO_ON: RunState.RUNNING, **_WITH_RUNNER},
    RunState.SUSPENDED: {RunAct.RESUME: RunState.RUNNING, **_WITH_RUNNER},
    RunState.CANCELLING: {RunAct.END: RunState.CLEANING},
    RunState.CLEANING: {RunAct.CLEAN: None},
    RunState.SUCCEEDED: {},
    RunState.FAILED: {RunAct.RESUME: RunState.QUEUED},
    RunState.TIMED_OUT: {},
    RunState.CANCELLED: {},
}


def move(state: RunState, act: RunAct, outcome: RunState | None = None) -> RunState:
    """Find where an act leads; `Conflict` where it leads nowhere."""
    if act not in TABLE[state]:
        raise Conflict(f"cannot {act} a run that is {state}; look at its state again")
    found = TABLE[state][act] or outcome
    if found is None:
        raise Conflict(f"cannot {act} a run that has no outcome; look at its state again")
    return found


class CleanupStatus(StrEnum):
    NOT_STARTED = "not_started"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_TERMINAL = "failed_terminal"
    SKIPPED = "skipped"  # kept, since the run's policy says so


class ErrorClass(StrEnum):
    """Class of a failure. `public` is the closed set that customers are told; `retries`: a step that failed so is tried again."""

    public: str
    retries: bool
    meaning: str

    def __new__(cls, name: str, public: str, retries: bool, meaning: str) -> Self:
        kind = str.__new__(cls, name)
        kind._value_, kind.public, kind.retries, kind.meaning = name, public, retries, meaning
        return kind

    TENANT_PERMANENT = (
        *("tenant_permanent", "invalid_submission", False),
        "what the submitter gave is refused: the key was revoked, the model or the repository is not theirs",
    )
    TENANT_QUOTA = "tenant_quota", "quota_exhausted", False, "a cap of the workspace or of the run is reached"
    PROVIDER_TRANSIENT = (
        *("provider_transient", "transient-provider", True),
        "the provider or the network did not answer; tried again only where nothing can have happened",
    )
    PROVIDER_PERMANENT = (
        *("provider_permanent", "provider-permanent", False),
        "the provider refuses what Legation sent",
    )
    PROVIDER_LIMIT = (
        *("provider_limit", "quota_exhausted", False),
        "a usage limit of the provider lasted longer than the run may be suspended",
    )
    AGENT_FAILED = "agent_failed", "internal_error", False, "the agent ended, or said that it cannot go on"
    MACHINE_LOST = (
        *("machine_lost", "internal_error", False),
        "the machine or the runner is gone, and the prompt may have had an effect: `resume` goes on",
    )
    DEADLINE = "deadline", "wall_clock_exceeded", False, "its time was up"
    UNAVAILABLE = (
        *("unavailable", "internal_error", True),
        "what the machine should have is not there: a program, room on the disk, an isolation",
    )
    INTERNAL = "internal", "internal_error", False, "a defect of Legation's"


# The projection to the names of seed 004's successor: of the state alone, or of the state and one fact more.
class Fact(StrEnum):
    LEASED = "a worker has claimed it"
    UNHEARD = "its runner has not reported yet"
    UNCLEAN = "what was made for it could not be removed"


REFINED: Final[Mapping[tuple[RunState, Fact], RunStatus]] = {
    (RunState.QUEUED, Fact.LEASED): "claiming",
    (RunState.RUNNING, Fact.UNHEARD): "dispatched",
    **{(state, Fact.UNCLEAN): "cleanup_failed" for state in sorted(TERMINAL)},
}


def status_of(
    state: RunState, *, leased: bool = False, heard: bool = True, cleanup: str | None = None
) -> RunStatus:
    """Project a state: the one function for every surface."""
    facts = {
        Fact.LEASED: leased,
        Fact.UNHEARD: not heard,
        Fact.UNCLEAN: cleanup == CleanupStatus.FAILED_TERMINAL,
    }
    return next(
        (REFINED[state, fact] for fact in Fact if facts[fact] and (state, fact) in REFINED), state.status
    )
