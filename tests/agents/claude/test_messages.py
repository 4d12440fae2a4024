"""Our types of Claude Code's lines against those that its maker publishes: the inventory that is part of Legation."""

from __future__ import annotations

import pytest

from legation.agents.claude import messages
from legation.agents.claude import options as offers
from legation.agents.claude import permissions as asking
from legation.agents.claude.messages import SILENT
from legation.agents.claude.permissions import AskedQuestions
from tools.schemas import Published, committed, fit

PUBLISHED = committed("claude")
PAIRS: tuple[tuple[type, str], ...] = (
    (messages.Assistant, "SDKAssistantMessage"),
    (messages.UserLine, "SDKUserMessage"),
    (messages.UserLine, "SDKUserMessageReplay"),
    (messages.StreamEvent, "SDKPartialAssistantMessage"),
    (messages.Result, "SDKResultSuccess"),
    (messages.Result, "SDKResultError"),
    (messages.Init, "SDKSystemMessage"),
    (messages.StatusLine, "SDKStatusMessage"),
    (messages.CompactBoundary, "SDKCompactBoundaryMessage"),
    (messages.ApiRetry, "SDKAPIRetryMessage"),
    (messages.Informational, "SDKInformationalMessage"),
    (messages.Notification, "SDKNotificationMessage"),
    (messages.CommandOutput, "SDKLocalCommandOutputMessage"),
    (messages.PermissionDenied, "SDKPermissionDeniedMessage"),
    (messages.Refusal, "SDKModelRefusalFallbackMessage"),
    (messages.Refusal, "SDKModelRefusalNoFallbackMessage"),
    (messages.TaskStarted, "SDKTaskStartedMessage"),
    (messages.TaskNotification, "SDKTaskNotificationMessage"),
    (messages.HookResponse, "SDKHookResponseMessage"),
    (messages.CommandsChanged, "SDKCommandsChangedMessage"),
    (messages.ToolProgress, "SDKToolProgressMessage"),
    (messages.RateLimitEvent, "SDKRateLimitEvent"),
    (messages.ControlRequest, "SDKControlRequest"),
    (messages.ControlAnswer, "ControlResponse"),
    (messages.ControlAnswer, "ControlErrorResponse"),
    (messages.ControlCancel, "SDKControlCancelRequest"),
    (asking.ToolRequest, "SDKControlPermissionRequest"),
    (asking.Elicitation, "SDKControlElicitationRequest"),
    (AskedQuestions, "AskUserQuestionInput"),
    (offers.Greeting, "SDKControlInitializeResponse"),
)
ONLY_READ = "is required, and ours does not write it"


# Of the model's own wire, or of the language: types that are published elsewhere.
ELSEWHERE = {
    "Assistant.message",
    "UserLine.message",
    "StreamEvent.event",
    *(f"{name}.uuid" for name in ("CommandOutput", "CompactBoundary", "StatusLine", "UserLine")),
}


def test_our_types_fit_what_is_published() -> None:
    found = fit(PAIRS, Published(PUBLISHED))
    assert {each.where for each in found.misfits if each.what != ONLY_READ} == ELSEWHERE
    assert {kind for kind, _ in PAIRS} <= found.compared


def test_what_is_silent_is_published_or_known_not_to_be() -> None:
    texts = [str(each) for each in PUBLISHED.definitions.values()]
    for name in SILENT:
        word = name.rpartition("/")[2]
        assert any(f"'{word}'" in text for text in texts), name


@pytest.mark.parametrize("mode", ["default", "plan"])
def test_the_modes_that_we_offer_are_its_own(mode: str) -> None:
    assert f"'{mode}'" in PUBLISHED.definitions["PermissionMode"]


def test_each_control_request_of_ours_is_its_own() -> None:
    chosen = offers.ClaudeOptions(
        (offers.ClaudeModel(value="haiku", supportedEffortLevels=("high",)),),
        {"model": "haiku", "effort": "default"},
    )
    requests = (
        {"subtype": "initialize", "hooks": asking.HOOKS},
        {"subtype": "interrupt", "cancel_queued": True},
        chosen.mode_request("plan"),
        chosen.request_for("model", "haiku"),
        chosen.request_for("effort", "high"),
    )
    for request in requests:
        [published] = [
            each
            for name, each in PUBLISHED.definitions.items()
            if name.startswith("SDKControl")
            and isinstance(each, dict)
            and each.get("subtype") == f"'{request['subtype']}'"
        ]
        members = {name.rstrip("?") for name in published}
        assert set(request) <= members
