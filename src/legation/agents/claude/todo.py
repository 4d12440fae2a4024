"""The model's list of what is to be done, as an ACP plan: from `TodoWrite`, or from the task tools that replace it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from legation.agents.claude.tools import TODO
from legation.wire.acp.plan import PLAN_STATUSES, Plan, PlanEntry
from legation.wire.acp.updates import SessionUpdate

_PRIORITY: Final = "medium"  # it has none, and a plan must name one
_CREATE: Final = "TaskCreate"
_UPDATE: Final = "TaskUpdate"


def todo_plan(name: str, given: object) -> Iterator[SessionUpdate]:
    """The whole list, where the call is one that sets it."""
    todos = given.get("todos") if name == TODO and isinstance(given, Mapping) else None
    if isinstance(todos, list | tuple):
        entries = (
            _entry(each.get("content"), each.get("status")) for each in todos if isinstance(each, Mapping)
        )
        yield Plan(entries=tuple(entries))


class TaskBoard:
    """Tasks are made and changed one by one; a call counts once it has succeeded."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, Mapping[str, object]]] = {}
        self._tasks: dict[str, PlanEntry] = {}

    def called(self, call_id: str, name: str, given: object) -> None:
        if name in (_CREATE, _UPDATE) and isinstance(given, Mapping):
            self._calls[call_id] = (name, given)

    def returned(self, call_id: str, details: object, *, failed: bool) -> Iterator[SessionUpdate]:
        name, given = self._calls.pop(call_id, ("", {}))
        if not name or failed or not isinstance(details, Mapping):
            return
        if name == _CREATE:
            made = details.get("task")
            task = str(made.get("id")) if isinstance(made, Mapping) else ""
            self._tasks[task] = _entry(given.get("subject"), "pending")
        elif not self._change(str(given.get("taskId")), given):
            return
        yield Plan(entries=tuple(self._tasks.values()))

    def _change(self, task: str, given: Mapping[str, object]) -> bool:
        before = self._tasks.get(task)
        if before is None:
            return False
        if given.get("status") == "deleted":
            del self._tasks[task]
        else:
            self._tasks[task] = _entry(
                given.get("subject") or before.content, given.get("status") or before.status
            )
        return True


def _entry(content: object, status: object) -> PlanEntry:
    known = status if isinstance(status, str) and status in PLAN_STATUSES else "pending"
    return PlanEntry(content=str(content or ""), priority=_PRIORITY, status=known)
