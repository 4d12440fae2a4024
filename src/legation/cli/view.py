"""A session's events for people or for programs: text as it streams, or JSON lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from legation.cli.command import Console, Style, line, plain
from legation.store import codec as store_codec
from legation.store.stream import Subscription
from legation.wire import event_types
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    Content,
    ContentBlock,
    Notice,
    Plan,
    PlanEntry,
    PlanFile,
    PlanItems,
    PlanMarkdown,
    PlanRemoved,
    PlanUpdate,
    Text,
    ToolCall,
    ToolCallPatch,
    ToolCallUpdate,
    Unrecognized,
    UsageUpdate,
    merged,
)
from legation.wire.action import Ask, Decision
from legation.wire.event_types import (
    AgentExited,
    Diagnostic,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    UnaskedEffect,
    UnaskingMode,
)
from legation.wire.events import Event

if TYPE_CHECKING:
    from legation.host.requests.handlers import Approver

OUTPUT_LINES = 8  # of a tool's output that are shown
_WOULD = {"deny": "denied it", "supervisor": "asked a supervisor", "human_approval": "asked a person"}
_MARKS = {"completed": "✓", "failed": "✗", "in_progress": "▸", "pending": "·"}


class SessionView(Protocol):
    def show(self, event: Event) -> None: ...
    def pause(self) -> None: ...
    def end(self) -> None: ...


class JsonView:
    """The events as they are stored, one line each."""

    def show(self, event: Event) -> None:
        sys.stdout.buffer.write(store_codec.encode([event]))
        sys.stdout.buffer.flush()

    def pause(self) -> None: ...

    def end(self) -> None: ...


def view_of(*, json: bool) -> SessionView:
    return JsonView() if json else Renderer(Console())


class Screen:
    """A view that shows a stream's events, and lets questions wait until everything before them has been shown."""

    def __init__(self, view: SessionView) -> None:
        self._view = view
        self._shown: dict[str, asyncio.Event] = {}

    async def follow(self, events: Subscription) -> None:
        async for event in events:
            self._view.show(event)
            if event.type == PermissionAsked.event_type():
                asked = event_types.decode(event)
                if isinstance(asked, PermissionAsked):
                    self._mark(asked.id).set()

    async def caught_up(self, ask: Ask) -> None:
        await self._mark(ask.id).wait()

    def pause(self) -> None:
        self._view.pause()

    def end(self) -> None:
        self._view.end()

    def _mark(self, ask_id: str) -> asyncio.Event:
        return self._shown.setdefault(ask_id, asyncio.Event())


class AskedInOrder:
    """An approver that asks another one once the screen has shown what led to the question."""

    def __init__(self, approver: Approver, screen: Screen) -> None:
        self._approver = approver
        self._screen = screen

    async def decide(self, ask: Ask) -> Decision:
        await self._screen.caught_up(ask)
        try:
            self._screen.pause()
        except OSError:  # nobody can see it any more; what is shown next stops the turn
            return Decision("denied", "unattended", "the output was closed: nobody sees what happens")
        return await self._approver.decide(ask)


class Renderer:
    """A session's events as text for people: one line a happening, the agent's words as they stream."""

    def __init__(self, terminal: Console) -> None:
        self._out = terminal
        self._speaking: type | None = None  # whose words the cursor stands in
        self._said = ""  # by the agent in this turn
        self._calls: dict[str, ToolCallPatch] = {}
        self._plans: dict[str, list[str]] = {}  # by their names; that of the session has none
        self._asked: dict[str, str] = {}
        self._show: dict[type, Callable[[Any], None]] = {
            PromptStarted: self._prompt,
            AgentMessageChunk: self._words,
            AgentThoughtChunk: self._words,
            ToolCall: self._tool_call,
            ToolCallUpdate: self._tool_call,
            Plan: self._show_plan,
            PlanUpdate: self._named_plan,
            PlanRemoved: self._plan_removed,
            UsageUpdate: self._usage,
            Notice: self._notice,
            PermissionAsked: self._ask,
            PermissionAnswered: self._answer,
            UnaskedEffect: self._unasked,
            UnaskingMode: self._unasking,
            PromptFinished: self._finished,
            AgentExited: self._exited,
            Diagnostic: self._diagnostic,
            Unrecognized: self._unrecognized,
        }

    def show(self, event: Event) -> None:
        payload = event_types.decode(event)
        shower = self._show.get(type(payload))
        if shower:
            shower(payload)

    def pause(self) -> None:
        """Somebody else writes to the terminal next."""
        self._new_line()

    def end(self) -> None:
        self._new_line()
        for title in self._asked.values():
            self._out.say(f"? {line(title)}: not answered", "yellow")

    def _new_line(self) -> None:
        if self._speaking:
            self._out.say()
            self._speaking = None

    def _say(self, text: str, style: Style | None = None) -> None:
        self._new_line()
        self._out.say(text, style)

    def _prompt(self, started: PromptStarted) -> None:
        self._said = ""
        self._say(f"> {line(' '.join(_text(block) for block in started.prompt))}", "bold")

    def _words(self, chunk: AgentMessageChunk | AgentThoughtChunk) -> None:
        if self._speaking is not type(chunk):
            self._new_line()
            self._speaking = type(chunk)
        self._said += _text(chunk.content)
        self._out.write(plain(_text(chunk.content)), "dim" if isinstance(chunk, AgentThoughtChunk) else None)

    def _tool_call(self, update: ToolCallPatch) -> None:
        known = self._calls.get(update.tool_call_id)
        call = self._calls[update.tool_call_id] = merged(known, update) if known else update
        if call.kind == "switch_mode" and known is None:
            self._proposal(call)
        if call.status not in ("completed", "failed"):
            return
        if known is not None and known.status == call.status:
            return
        style: Style = "green" if call.status == "completed" else "red"
        self._say(f"{_MARKS[call.status]} {line(call.title or call.kind or 'tool')}", style)
        if call.kind == "execute":
            self._output(call)

    def _proposal(self, call: ToolCallPatch) -> None:
        """A plan that somebody is about to be asked about. Some agents have told it by then."""
        plan = _content(call).strip()
        if plan and plan not in self._said:
            self._say("plan:", "cyan")
            for text in plain(plan).splitlines():
                self._out.say(f"    {text}", "cyan")

    def _output(self, call: ToolCallPatch) -> None:
        lines = [text for text in plain(_content(call)).splitlines() if text.strip()]
        if len(lines) > OUTPUT_LINES:
            lines = [f"... {len(lines) - OUTPUT_LINES} lines more", *lines[-OUTPUT_LINES:]]
        for text in lines:
            self._out.say(f"    {text}", "dim")

    def _show_plan(self, plan: Plan) -> None:
        self._plan_entries("", plan.entries)

    def _plan_entries(self, name: str, entries: Sequence[PlanEntry]) -> None:
        """All of it at first, then what changed."""
        now = [f"{_MARKS.get(entry.status, '·')} {line(entry.content)}" for entry in entries]
        changed = [entry for entry in now if entry not in self._plans.get(name, ())]
        self._plans[name] = now
        if changed:
            self._say(f"plan{' ' if name else ''}{line(name)}: {'  '.join(changed)}", "cyan")

    def _named_plan(self, update: PlanUpdate) -> None:
        match update.plan:
            case PlanItems(plan_id=name, entries=entries):
                self._plan_entries(name, entries)
            case PlanFile(plan_id=name, uri=uri):
                self._say(f"plan {line(name)}: {line(uri)}", "cyan")
            case PlanMarkdown(plan_id=name, content=text):
                self._say(f"plan {line(name)}:", "cyan")
                for each in plain(text).splitlines():
                    self._out.say(f"    {each}", "cyan")

    def _plan_removed(self, removed: PlanRemoved) -> None:
        self._plans.pop(removed.plan_id, None)
        self._say(f"plan {line(removed.plan_id)}: removed", "cyan")

    def _usage(self, usage: UsageUpdate) -> None:
        cost = f", {usage.cost.amount:g} {line(usage.cost.currency)}" if usage.cost else ""
        self._say(f"usage: {usage.used} of {usage.size} tokens{cost}", "dim")

    def _notice(self, notice: Notice) -> None:
        more = f": {line(notice.description)}" if notice.description else ""
        self._say(f"{line(notice.severity)}: {line(notice.title)}{more}", "yellow")

    def _ask(self, asked: PermissionAsked) -> None:
        self._asked[asked.id] = asked.title  # shown with its answer

    def _answer(self, answered: PermissionAnswered) -> None:
        style: Style = "green" if answered.outcome == "approved" else "red"
        title = line(self._asked.pop(answered.id, "a permission"))
        if answered.by == "policy" and answered.outcome in ("approved", "denied"):
            self._rule_decided(answered, title)
            return
        why = f": {line(answered.reason)}" if answered.reason else ""
        self._say(f"{answered.outcome} · {line(answered.by_name or answered.by)} · {title}{why}", style)

    def _rule_decided(self, answered: PermissionAnswered, title: str) -> None:
        """Nobody was asked. What a rule allows is no news, what it denies is, with what the agent was told."""
        rule, _, why = (answered.reason or "a rule").partition(": ")
        if answered.outcome == "approved":
            self._say(f"allowed by {line(rule)} · {title}", "dim")
        else:
            told = answered.message or why
            self._say(f"denied by {line(rule)} · {title}{f': {line(told)}' if told else ''}", "red")

    def _unasked(self, effect: UnaskedEffect) -> None:
        would = (
            f"{effect.rule} would have {_WOULD.get(effect.policy or '', 'judged it')}" if effect.rule else ""
        )
        end = "the turn is ended" if effect.ends_turn else ""
        why = "; ".join(part for part in (would, end) if part)
        self._say(
            f"! UNASKED · {line(effect.title)}: done, and nobody had allowed it{f'; {line(why)}' if why else ''}",
            "red",
        )

    def _unasking(self, found: UnaskingMode) -> None:
        how = "it went to" if found.found == "left" else "it began in"
        if found.put_into is not None:
            self._say(
                f"{how} mode {line(found.mode)}, which does not ask: put into {line(found.put_into)}",
                "yellow",
            )
            return
        why = f": {line(found.reason)}" if found.reason else ""
        self._say(f"! UNASKING · {how} mode {line(found.mode)}, in which it asks nobody{why}", "red")

    def _finished(self, finished: PromptFinished) -> None:
        if finished.error:
            self._say(f"error {finished.error.code}: {line(finished.error.message)}", "red")
        elif finished.stop_reason != "end_turn":
            self._say(f"stopped: {line(finished.stop_reason)}", "yellow")

    def _exited(self, exited: AgentExited) -> None:
        if exited.code or exited.signal:
            how = f"signal {exited.signal}" if exited.signal else f"exit code {exited.code}"
            self._say(f"the agent ended with {how}", "red")

    def _diagnostic(self, diagnostic: Diagnostic) -> None:
        self._say(f"{diagnostic.code}: {line(diagnostic.message)}", "dim")

    def _unrecognized(self, update: Unrecognized) -> None:
        self._say(f"an update of an unknown kind ({len(update.raw)} bytes)", "dim")


def _content(call: ToolCallPatch) -> str:
    return "\n".join(_text(part.content) for part in call.content or () if isinstance(part, Content))


def _text(block: ContentBlock) -> str:
    return block.text if isinstance(block, Text) else f"[{type(block).__name__}]"
