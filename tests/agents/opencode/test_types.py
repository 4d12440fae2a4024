"""What we read and send, against what OpenCode publishes of it."""

from __future__ import annotations

from legation.agents.opencode import messages
from tools.schemas import Published, committed, fit

PUBLISHED = committed("opencode")
# We read these and never write them: what we leave out is left out on purpose.
LEFT_OUT = "ours does not write it"
OURS: tuple[tuple[object, str], ...] = (
    (messages.Message, "Message"),
    (messages.Part, "Part"),
    (messages.Status, "SessionStatus"),
    (messages.OpenCodeSessionInfo, "Session"),
    (messages.OfferedAgent, "Agent"),
    (messages.Providers, "config.providers.answer:200"),
    (messages.PermissionRequest, "PermissionRequest"),
    (messages.QuestionRequest, "QuestionRequest"),
    (messages.TodoItem, "Todo"),
    (messages.ServerHealth, "global.health.answer:200"),
    (messages.McpStatus, "MCPStatus"),
    (messages.MessageUpdated, "EventMessageUpdated.properties"),
    (messages.PartUpdated, "EventMessagePartUpdated.properties"),
    (messages.PartDelta, "EventMessagePartDelta.properties"),
    (messages.SessionChanged, "EventSessionUpdated.properties"),
    (messages.SessionChanged, "EventSessionCreated.properties"),
    (messages.StatusChanged, "EventSessionStatus.properties"),
    (messages.SessionIdle, "EventSessionIdle.properties"),
    (messages.SessionFailed, "EventSessionError.properties"),
    (messages.SessionCompacted, "EventSessionCompacted.properties"),
    (messages.PermissionRequest, "EventPermissionAsked.properties"),
    (messages.PermissionReplied, "EventPermissionReplied.properties"),
    (messages.QuestionRequest, "EventQuestionAsked.properties"),
    (messages.QuestionEnded, "EventQuestionReplied.properties"),
    (messages.QuestionEnded, "EventQuestionRejected.properties"),
    (messages.TodoUpdated, "EventTodoUpdated.properties"),
    (messages.InstanceDisposed, "EventServerInstanceDisposed.properties"),
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
    known = {*messages.READ, *messages.DROPPED}
    assert {each for each in names - known if not each.startswith(messages.DROPPED_PREFIX)} == set()


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
