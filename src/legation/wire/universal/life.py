"""A session's life: begun, in a turn or not, ended, and maybe begun again."""

from typing import Final

import msgspec

from legation.wire.lifecycle import AgentExited, SessionStatus
from legation.wire.universal import shapes
from legation.wire.universal.embedded import embedded
from legation.wire.universal.facts import SessionFacts
from legation.wire.universal.outbox import Outbox

TAIL_LINES: Final = 50
_INT32: Final = range(-(2**31), 2**31)
_GONE: Final = frozenset(("closed", "deleted"))


class Life(msgspec.Struct):
    """`turn` is the one that runs; `last_turn` is the one that ran before, which does not begin again."""

    session: SessionFacts
    fresh: bool = True  # no event yet, or a reset
    shown_active: bool = False
    ended: bool = False
    turn: str | None = None
    last_turn: str | None = None
    exit: AgentExited | None = None

    def copy(self) -> "Life":
        return msgspec.structs.replace(self)

    def begin(self, out: Outbox, *, raw: bool = False) -> None:
        self.fresh = self.ended = False
        data = shapes.SessionStarted(self.session.metadata)
        out.emit("session.started", data, synthetic=True, raw=raw)

    def begin_turn(self, out: Outbox, turn: str, *, raw: bool) -> None:
        self.turn = turn
        out.emit("turn.started", shapes.Turn("started", turn), synthetic=True, raw=raw)

    def end_turn(self, out: Outbox, *, raw: bool = False) -> None:
        """`raw`: the event says how it ended."""
        if self.turn is None:
            return
        metadata = embedded(out.cause.payload) if raw else None
        out.emit("turn.ended", shapes.Turn("ended", self.turn, metadata), synthetic=True, raw=raw)
        self.turn, self.last_turn = None, self.turn

    def ends_with(self, status: SessionStatus) -> shapes.SessionEnded | None:
        """None where it goes on: a server that stops takes its agents with it, and their sessions wait."""
        exited, self.exit = self.exit, None
        if status.status in _GONE:
            return shapes.SessionEnded("terminated", "daemon")
        how = (status.reason or "").partition(":")[0]
        if status.status != "disconnected" or how not in ("crashed", "ended"):
            return None
        if how == "ended":
            return shapes.SessionEnded("completed", "agent")
        code = exited.code if exited else None
        return shapes.SessionEnded(
            "error",
            "agent",
            message=f"the agent {status.reason}",
            exit_code=code if code is not None and code in _INT32 else None,
            stderr=_stderr(exited.stderr_tail) if exited and exited.stderr_tail else None,
        )


def _stderr(text: str) -> shapes.Stderr:
    """The log has the end of it. Where that is short it counts as all there was."""
    lines = text.splitlines()
    if len(lines) <= TAIL_LINES:
        return shapes.Stderr(truncated=False, head=text, total_lines=len(lines))
    return shapes.Stderr(truncated=True, tail="\n".join(lines[-TAIL_LINES:]))
