"""What a session's events look like to people."""

import io
from collections.abc import AsyncIterator

from legation.cli.command import Console
from legation.cli.view import AskedInOrder, Renderer, Screen
from legation.host.requests.handlers import ApproveAll
from legation.wire import event_types
from legation.wire.acp.updates import (
    AgentMessageChunk,
    Content,
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
)
from legation.wire.action import Action, Ask
from legation.wire.event_types import Known, PermissionAsked, UnaskedEffect, UnaskingMode
from legation.wire.events import Event

PLAN = "1. look\n2. leap"
PROPOSED = ToolCall(
    tool_call_id="p",
    title="ExitPlanMode",
    kind="switch_mode",
    status="pending",
    content=(Content(content=Text(text=PLAN)),),
)


def shown(*payloads: Known) -> str:
    out = io.StringIO()
    renderer = Renderer(Console(out))
    for seq, payload in enumerate(payloads, 1):
        told = event_types.draft(payload)
        renderer.show(Event(seq=seq, at=0, type=told.type, raw=told.raw, span=told.span))
    renderer.end()
    return out.getvalue()


def test_a_plan_is_shown_before_somebody_is_asked_about_it() -> None:
    assert shown(PROPOSED) == "plan:\n    1. look\n    2. leap\n"


def test_a_plan_that_the_agent_has_told_is_not_shown_again() -> None:
    assert shown(AgentMessageChunk(content=Text(text=f"{PLAN}\n")), PROPOSED).count("look") == 1


def test_what_a_notice_is_about_is_told_apart_from_it() -> None:
    assert (
        shown(Notice(severity="warning", title="Asked again", description="1 of 5"))
        == "warning: Asked again: 1 of 5\n"
    )
    assert shown(Notice(severity="error", title="Too long")) == "error: Too long\n"


def test_plans_that_have_names_are_told_apart() -> None:
    entry = PlanEntry(content="look", priority="low", status="pending")
    done = PlanEntry(content="look", priority="low", status="completed")
    told = shown(
        PlanUpdate(plan=PlanItems(plan_id="a", entries=(entry,))),
        Plan(entries=(entry,)),
        PlanUpdate(plan=PlanItems(plan_id="a", entries=(entry,))),
        PlanUpdate(plan=PlanItems(plan_id="a", entries=(done,))),
        PlanUpdate(plan=PlanFile(plan_id="b", uri="file:///p.md")),
        PlanUpdate(plan=PlanMarkdown(plan_id="c\x1b[2J", content="# one\n# two")),
        PlanRemoved(plan_id="a"),
        PlanUpdate(plan=PlanItems(plan_id="a", entries=(done,))),
    )
    assert "\x1b" not in told
    assert [line for line in told.splitlines() if not line.startswith("plan c")] == [
        "plan a: · look",
        "plan: · look",
        "plan a: ✓ look",
        "plan b: file:///p.md",
        "    # one",
        "    # two",
        "plan a: removed",
        "plan a: ✓ look",
    ]


def test_what_was_done_unasked_is_loud() -> None:
    action = Action(agent="a", tool="edit")
    effect = UnaskedEffect(title="Write\x1b[2J a", action=action, policy="deny", rule="p:no", ends_turn=True)
    told = shown(effect)
    assert told.startswith("! UNASKED · Write")
    assert "\x1b" not in told
    assert told.endswith("done, and nobody had allowed it; p:no would have denied it; the turn is ended\n")
    mode = UnaskingMode(mode="yolo", found="left", reason="it insists")
    assert shown(mode) == "! UNASKING · it went to mode yolo, in which it asks nobody: it insists\n"


class ClosedOutput:
    """A view whose reader goes away between the last words of the agent and its question."""

    def show(self, event: Event) -> None: ...

    def pause(self) -> None:
        raise BrokenPipeError

    def end(self) -> None: ...


async def test_nobody_is_asked_about_what_nobody_can_see() -> None:
    action = Action(agent="agent", tool="Bash", kind="execute")
    asked = Ask(id="apr_1", session_id="s", action=action, options=(), title="x", asked_at=0, expires_at=1)
    told = event_types.draft(PermissionAsked.from_ask(asked))

    async def events() -> AsyncIterator[Event]:
        yield Event(seq=1, at=0, type=told.type, raw=told.raw, span=told.span)

    screen = Screen(ClosedOutput())
    await screen.follow(events())  # type: ignore[arg-type]  # it is only iterated
    decision = await AskedInOrder(ApproveAll(), screen).decide(asked)
    assert (decision.outcome, decision.by) == ("denied", "unattended")
