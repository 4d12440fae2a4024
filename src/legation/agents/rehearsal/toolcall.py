"""A tool call as the client sees it: pending, in progress, then completed or failed."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from legation.agents.rehearsal.connection import Json
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
