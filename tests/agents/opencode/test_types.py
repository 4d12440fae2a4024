"""What we read and send, against what OpenCode publishes of it."""

from __future__ import annotations

from legation.agents.opencode import answers, events, messages, requests, states
from legation.agents.opencode.mcp import McpStatus
from legation.agents.schemas import Published, committed, fit

PUBLISHED = committed("opencode")
# We read these and never write them: what we leave out is left out on purpose.
LEFT_OUT = "ours does not write it"
OURS: tuple[tuple[object, str], ...] = (
    (messages.Message, "Message"),
    (messages.Part, "Part"),
    (states.Status, "SessionStatus"),
    (states.SessionInfo, "Session"),
    (answers.AgentInfo, "Agent"),
    (answers.Providers, "config.providers.answer:200"),
    (requests.PermissionRequest, "PermissionRequest"),
    (requests.QuestionRequest, "QuestionRequest"),
    (states.Todo, "Todo"),
    (answers.Health, "global.health.answer:200"),
    (McpStatus, "MCPStatus"),
    (events.MessageUpdated, "EventMessageUpdated.properties"),
    (events.PartUpdated, "EventMessagePartUpdated.properties"),
    (events.PartDelta, "EventMessagePartDelta.properties"),
    (events.SessionUpdated, "EventSessionUpdated.properties"),
    (events.SessionCreated, "EventSessionCreated.properties"),
    (events.StatusChanged, "EventSessionStatus.properties"),
    (events.SessionIdle, "EventSessionIdle.properties"),
    (events.SessionFailed, "EventSessionError.properties"),
    (events.SessionCompacted, "EventSessionCompacted.properties"),
    (events.PermissionAsked, "EventPermissionAsked.properties"),
    (events.PermissionReplied, "EventPermissionReplied.properties"),
    (events.QuestionAsked, "EventQuestionAsked.properties"),
    (events.QuestionEnded, "EventQuestionReplied.properties"),
    (events.QuestionEnded, "EventQuestionRejected.properties"),
    (events.TodoUpdated, "EventTodoUpdated.properties"),
    (events.InstanceDisposed, "EventServerInstanceDisposed.properties"),
)


def test_all_that_can_come_can_be_read() -> None:
    found = fit(OURS, Published(PUBLISHED)).misfits
    assert [str(each) for each in found if LEFT_OUT not in each.what] == []


def test_every_published_event_is_read_or_dropped_for_a_reason() -> None:
    names = {
        str(definition["type"]).strip("'")
        for name, definition in PUBLISHED.definitions.items()
        if name.startswith("Event") and isinstance(definition, dict) and "type" in definition
    }
    known = {*events.READ, *events.DROPPED}
    assert {each for each in names - known if not each.startswith(events.DROPPED_PREFIX)} == set()


def test_every_call_that_we_make_is_published() -> None:
    operations = PUBLISHED.definitions["operations"]
    assert set(CALLS) <= set(operations)


CALLS = (
    "GET /agent",
    "GET /config",
    "GET /config/providers",
    "GET /global/event",
    "GET /global/health",
    "GET /permission",
    "GET /question",
    "GET /session",
    "GET /session/status",
    "GET /session/{sessionID}",
    "GET /session/{sessionID}/children",
    "GET /session/{sessionID}/message",
    "DELETE /session/{sessionID}",
    "POST /instance/dispose",
    "POST /mcp",
    "POST /permission/{requestID}/reply",
    "POST /question/{requestID}/reject",
    "POST /question/{requestID}/reply",
    "POST /session",
    "POST /session/{sessionID}/abort",
    "POST /session/{sessionID}/fork",
    "POST /session/{sessionID}/prompt_async",
)
