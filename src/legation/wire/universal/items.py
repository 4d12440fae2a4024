"""Items of tool calls, with what came of them.

A tool call is an item, and what came of it another. The call's item is completed when the call stands: it runs, is
asked about or ends. What it shows before it runs is no output: Claude puts a description there. Output that grows is
told by deltas of the result's item. Output that is replaced by another ends that item and begins a new one, for a delta
can only add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from legation.wire.acp.updates import (
    Content,
    Diff,
    Terminal,
    Text,
    ToolCall,
    ToolCallPatch,
    ToolCallUpdate,
    merged,
)
from legation.wire.action import tool_of
from legation.wire.universal import shapes
from legation.wire.universal.output import Outbox, embedded, json_text, json_value
from legation.wire.universal.text import part_of

# A change of a file as one hunk of a unified diff, in time linear in its size.
#
# Not the smallest diff there is: finding that is quadratic, and agents send what they like.

CONTEXT: Final = 3


def unified(path: str, old: str | None, new: str) -> str:
    before, after = _lines(old or ""), _lines(new)
    same_start = _common(before, after)
    same_end = _common(before[same_start:][::-1], after[same_start:][::-1])
    start = max(0, same_start - CONTEXT)
    tail = min(same_end, CONTEXT)
    gone = before[same_start : len(before) - same_end]
    come = after[same_start : len(after) - same_end]
    lead = before[start:same_start]
    rest = before[len(before) - same_end : len(before) - same_end + tail]
    if not gone and not come:
        return ""
    lines = [
        f"--- {'/dev/null' if old is None else path}\n",
        f"+++ {path}\n",
        f"@@ -{_span(start, len(lead + gone + rest))} +{_span(start, len(lead + come + rest))} @@\n",
        *(_line(" ", line) for line in lead),
        *(_line("-", line) for line in gone),
        *(_line("+", line) for line in come),
        *(_line(" ", line) for line in rest),
    ]
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Ended by line feeds alone: `splitlines` knows other ends, which no diff has."""
    *whole, last = text.split("\n")
    return [*(f"{line}\n" for line in whole), *([last] if last else [])]


def _common(left: list[str], right: list[str]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _span(start: int, length: int) -> str:
    """Lines are counted from 1; an empty span names the line before it."""
    return f"{start + 1 if length else start},{length}"


def _line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


_WRITING: Final = frozenset(("edit", "delete", "move"))


def _call_parts(call: ToolCallPatch) -> tuple[shapes.Part, ...]:
    given = {} if call.raw_input is UNSET or call.raw_input is None else call.raw_input
    part = shapes.ItemToolCall(tool_of(call), json_text(given), call.tool_call_id)
    return (part, shapes.ItemLabel(call.title, call.kind)) if call.title else (part,)


def _output_of(call: ToolCallPatch) -> str:
    """Its text; where it shows none, what the tool gave back."""
    texts = [
        each.content.text
        for each in call.content or ()
        if isinstance(each, Content) and isinstance(each.content, Text)
    ]
    if texts:
        return "\n".join(texts)
    if call.raw_output is UNSET or call.raw_output is None:
        return ""
    return call.raw_output if isinstance(call.raw_output, str) else json_text(call.raw_output)


def _result_parts(call: ToolCallPatch, output: str) -> tuple[shapes.Part, ...]:
    return (shapes.ItemToolResult(call.tool_call_id, output), *_shown(call), *_located(call))


def _shown(call: ToolCallPatch) -> Iterator[shapes.Part]:
    """All of its content that is no text."""
    for each in call.content or ():
        match each:
            case Diff():
                action: shapes.FileAction = "write" if each.old_text is None else "patch"
                yield shapes.FileRef(each.path, action, unified(each.path, each.old_text, each.new_text))
            case Content(content=Text()):
                continue
            case Content(content=block):
                yield part_of(block)
            case Terminal():
                yield shapes.ItemJson(json_value(each))
            case unread:
                yield shapes.ItemJson(json_value(unread.value))


def _located(call: ToolCallPatch) -> Iterator[shapes.FileRef]:
    changed = {each.path for each in call.content or () if isinstance(each, Diff)}
    action: shapes.FileAction = "write" if call.kind in _WRITING else "read"
    for path in dict.fromkeys(location.path for location in call.locations or ()):
        if path not in changed:
            yield shapes.FileRef(path, action)


KEPT: Final = 500  # calls of a turn that are open, or may be heard of again
KEPT_BYTES: Final = (
    1024 * 1024
)  # of what those that are open said: as objects, it may be thirty times as much

_ENDED: Final[dict[str, shapes.ItemStatus]] = {"completed": "completed", "failed": "failed"}
_STARTED: Final = frozenset(("in_progress", *_ENDED))


class ToolItemState(msgspec.Struct, frozen=True):
    """A call, as it is kept. `known` is what all updates together say. `result_id` is empty while there is no result."""

    item_id: str
    known: ToolCallPatch
    stands: bool = False
    ended: bool = False
    result_id: str = ""
    shown: str = ""
    size: int = 0  # of the longest word of it; 0 where none is kept


_NO_CALLS: Final[Mapping[str, ToolItemState]] = {}


class ToolItems:
    __slots__ = ("_calls", "_held")

    def __init__(self, calls: Mapping[str, ToolItemState] = _NO_CALLS) -> None:
        self._calls = dict(calls)
        self._held = sum([call.size for call in calls.values()])

    @property
    def held(self) -> int:
        """Bytes of what those that are open said."""
        return self._held

    def copy(self) -> ToolItems:
        return ToolItems(self._calls)

    def state(self) -> Mapping[str, ToolItemState]:
        """As it is: nothing is copied. The oldest is the first."""
        return self._calls

    def take(self, out: Outbox, update: ToolCall | ToolCallUpdate) -> None:
        """An update of a call that was never announced announces it."""
        before = self._calls.get(update.tool_call_id)
        if before is None:
            self._forget_oldest(out)
            known = _patch(update)
            call = ToolItemState(out.new_item(), known)
            silent = known.status not in _STARTED
            out.emit("item.started", _call_item(call, "in_progress"), synthetic=not silent, raw=silent)
        elif before.ended:
            _tell(out, before, update)
            return
        else:
            call = msgspec.structs.replace(before, known=merged(before.known, update))
            silent = False
        call = call if silent else _advanced(out, call, before, update)
        self._keep(out, update.tool_call_id, call)

    def _keep(self, out: Outbox, name: str, call: ToolItemState) -> None:
        """With the size that it has now; the oldest ones go where all of them say too much."""
        before = self._calls.get(name)
        size = 0 if call.ended else max(call.size, len(out.cause.brief))
        self._calls[name] = msgspec.structs.replace(call, size=size)
        self._held += size - (before.size if before else 0)
        if self._held > KEPT_BYTES:
            for other in [each for each, known in self._calls.items() if each != name and known.size]:
                self._forget(out, other)
                if self._held <= KEPT_BYTES:
                    return

    def stand(self, out: Outbox, call_id: str | None) -> None:
        """Somebody is asked about it, so it is as it will be done."""
        call = self._calls.get(call_id or "")
        if call is not None and call_id is not None and not call.stands:
            self._calls[call_id] = _standing(out, call)

    def end(self, out: Outbox) -> None:
        """The turn is over; what still ran has no end that anybody will tell."""
        for call in self._calls.values():
            _abandon(out, call)
        self._calls, self._held = {}, 0

    def _forget_oldest(self, out: Outbox) -> None:
        """All that are open end with their turn, at once: so many that nobody is held up by it."""
        if len(self._calls) >= KEPT:
            self._forget(out, next(iter(self._calls)))

    def _forget(self, out: Outbox, name: str) -> None:
        call = self._calls.pop(name)
        self._held -= call.size
        _abandon(out, call)


def _abandon(out: Outbox, call: ToolItemState) -> None:
    if call.ended:
        return
    if not call.stands:
        out.emit("item.completed", _call_item(call, "failed"), synthetic=True)
    else:
        result = _showing(out, call, call.shown)
        out.emit("item.completed", _result_item(result, "failed"), synthetic=True)


def _advanced(
    out: Outbox, call: ToolItemState, before: ToolItemState | None, update: ToolCall | ToolCallUpdate
) -> ToolItemState:
    """Exactly one of the events emitted here carries the update itself."""
    status = call.known.status or ""
    output = _output_of(call.known) if status in _STARTED else call.shown
    if status in _ENDED:
        return _ended(out, call, output, _ENDED[status])
    if output != call.shown:
        return _showing(out, call if call.stands else _standing(out, call), output, raw=True)
    if status in _STARTED and not call.stands:
        return _standing(out, call, raw=True)
    _tell(out, before or call, update)
    return call


def _standing(out: Outbox, call: ToolItemState, *, raw: bool = False) -> ToolItemState:
    out.emit("item.completed", _call_item(call, "completed"), synthetic=not raw, raw=raw)
    return msgspec.structs.replace(call, stands=True)


def _showing(out: Outbox, call: ToolItemState, output: str, *, raw: bool = False) -> ToolItemState:
    if call.result_id and not output.startswith(call.shown):
        out.emit("item.completed", _result_item(call, "completed"), synthetic=True)
        call = msgspec.structs.replace(call, result_id="", shown="")
    if not call.result_id:
        call = msgspec.structs.replace(call, result_id=out.new_item())
        out.emit("item.started", _result_item(call, "in_progress"), synthetic=True)
    added = output[len(call.shown) :]
    if added or raw:
        out.delta(call.result_id, call.known.tool_call_id, added, raw=raw)
    return msgspec.structs.replace(call, shown=output)


def _ended(out: Outbox, call: ToolItemState, output: str, status: shapes.ItemStatus) -> ToolItemState:
    call = call if call.stands else _standing(out, call)
    call = _showing(out, call, output)
    out.emit("item.completed", _result_item(call, status, whole=True), raw=True)
    # It may be heard of again, but what it said need not be kept.
    kept = ToolCallPatch(
        tool_call_id=call.known.tool_call_id, title=call.known.title, status=call.known.status
    )
    return msgspec.structs.replace(call, known=kept, ended=True, shown="")


def _tell(out: Outbox, call: ToolItemState, update: ToolCall | ToolCallUpdate) -> None:
    """Something else about the call: as it came."""
    label = update.title or call.known.title or "tool call"
    content = (
        shapes.ItemLabel(label, update.status or call.known.status),
        shapes.ItemJson(embedded(out.cause.brief)),
    )
    out.whole_item("status", "tool", content, native_id=update.tool_call_id, parent_id=call.item_id)


def _patch(update: ToolCall | ToolCallUpdate) -> ToolCallPatch:
    return merged(ToolCallPatch(tool_call_id=update.tool_call_id), update)


def _call_item(call: ToolItemState, status: shapes.ItemStatus) -> shapes.ItemEvent:
    native = call.known.tool_call_id
    item = shapes.Item(call.item_id, native, None, "tool_call", "assistant", _call_parts(call.known), status)
    return shapes.ItemEvent(item)


def _result_item(call: ToolItemState, status: shapes.ItemStatus, *, whole: bool = False) -> shapes.ItemEvent:
    """Files and pictures are of the whole result only."""
    native = call.known.tool_call_id
    content: tuple[shapes.Part, ...] = (shapes.ItemToolResult(native, call.shown),)
    if whole:
        content = _result_parts(call.known, call.shown)
    item = shapes.Item(call.result_id, native, call.item_id, "tool_result", "tool", content, status)
    return shapes.ItemEvent(item)
