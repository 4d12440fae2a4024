"""A tool call as the client sees it: pending, asked about, in progress, then completed or failed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from legation.agents.rehearsal.connection import Json, RequestId
from legation.agents.rehearsal.params import inner
from legation.agents.rehearsal.turn import StepFailedError, Turn, TurnCancelledError, new_id, text_block

Kind: TypeAlias = Literal["read", "edit", "execute", "search", "other"]


def text_content(text: str) -> Json:
    return {"type": "content", "content": text_block(text)}


def diff_content(path: Path, old: str | None, new: str) -> Json:
    return {"type": "diff", "path": str(path), "oldText": old, "newText": new}


class ToolCall:
    """`with ToolCall(...)`: a `StepFailedError` inside is reported and ends there."""

    def __init__(
        self,
        turn: Turn,
        kind: Kind,
        title: str,
        *,
        raw_input: Json,
        path: Path | None = None,
        content: Sequence[Json] = (),
    ) -> None:
        self.turn = turn
        self.kind = kind
        self.finished = False
        self.facts: dict[str, object] = {
            "toolCallId": new_id("call"),
            "title": title,
            "kind": kind,
            "status": "pending",
            "locations": [] if path is None else [{"path": str(path)}],
            "rawInput": raw_input,
            "content": list(content),
        }

    def __enter__(self) -> "ToolCall":
        self.turn.update({"sessionUpdate": "tool_call", **self.facts})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, TurnCancelledError):
            self.fail("cancelled")
        elif isinstance(error, (StepFailedError, OSError)):
            self.fail(str(error))
            return True
        elif error is None and not self.finished:
            self.complete()
        return False

    def begin(self) -> None:
        self._update({"status": "in_progress"})

    def show(self, *content: Json) -> None:
        self._update({"content": list(content)})

    def complete(self, *content: Json, raw_output: Json | None = None) -> None:
        self._finish("completed", content, raw_output)

    def fail(self, reason: str, *, raw_output: Json | None = None) -> None:
        self._finish("failed", [text_content(reason)], raw_output or {"error": reason})

    def _finish(self, status: str, content: Sequence[Json], raw_output: Json | None) -> None:
        self.finished = True
        facts: dict[str, object] = {"status": status}
        if content:
            facts["content"] = list(content)
        if raw_output is not None:
            facts["rawOutput"] = raw_output
        self._update(facts)

    def _update(self, facts: Json) -> None:
        call_id = self.facts["toolCallId"]
        self.turn.update({"sessionUpdate": "tool_call_update", "toolCallId": call_id, **facts})


# The client is asked before something is done, with all four kinds of option.


ALLOWS: Mapping[str, bool] = {
    "allow-once": True,
    "allow-always": True,
    "reject-once": False,
    "reject-always": False,
}
NAMES: Mapping[str, str] = {
    "allow-once": "Allow",
    "allow-always": "Allow for this session",
    "reject-once": "Reject",
    "reject-always": "Reject for this session",
}
OPTIONS: list[Json] = [
    {"optionId": option, "name": name, "kind": option.replace("-", "_")} for option, name in NAMES.items()
]


def ask_permission(call: ToolCall) -> str:
    """The option that allowed it; a refusal is a `StepFailedError`, a cancel ends the turn."""
    remembered = call.turn.session.remembered
    if call.kind in remembered:
        return _obey("allow-always" if remembered[call.kind] else "reject-always")
    reply = call.turn.ask_client("session/request_permission", request(call))
    if reply.error is not None:
        raise StepFailedError(f"permission not given: the client answered {reply.complaint}")
    if inner(reply.fields, "outcome", "outcome") == "cancelled":
        call.turn.cancel()
        raise TurnCancelledError
    option = str(inner(reply.fields, "outcome", "optionId"))
    if option.endswith("-always") and option in ALLOWS:
        remembered[call.kind] = ALLOWS[option]
    return _obey(option)


def ask_permission_and_withdraw(call: ToolCall) -> RequestId:
    """Asks, and takes the question back at once."""
    params = {"sessionId": call.turn.session.record.id, **request(call)}
    pending = call.turn.connection.request("session/request_permission", params)
    call.turn.withdraw(pending)
    return pending.id


def request(call: ToolCall) -> Json:
    return {"toolCall": call.facts, "options": OPTIONS}


def _obey(option: str) -> str:
    if option not in ALLOWS:
        raise StepFailedError("permission not given: the client chose an option that was not offered")
    if not ALLOWS[option]:
        raise StepFailedError(f"permission denied ({option})")
    return option
