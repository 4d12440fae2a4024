"""The driver's types against the schema that Codex publishes: the inventory that is part of Legation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legation.agents.codex import messages
from legation.agents.codex.messages import Sent
from legation.agents.codex.permissions import ANSWERS, SHAPES
from legation.agents.codex.translate import READERS, SILENT
from tools.schemas import Published, committed, fit

STABLE = committed("codex")
ALL = replace(STABLE, definitions={**STABLE.definitions, **committed("codex-experimental").definitions})

READ = (
    (messages.TurnNews, "TurnStartedNotification"),
    (messages.TurnNews, "TurnCompletedNotification"),
    (messages.ItemNews, "ItemStartedNotification"),
    (messages.ItemNews, "ItemCompletedNotification"),
    (messages.DeltaNews, "AgentMessageDeltaNotification"),
    (messages.DeltaNews, "PlanDeltaNotification"),
    (messages.DeltaNews, "ReasoningSummaryTextDeltaNotification"),
    (messages.DeltaNews, "ReasoningTextDeltaNotification"),
    (messages.DeltaNews, "CommandExecutionOutputDeltaNotification"),
    (messages.SummaryPartNews, "ReasoningSummaryPartAddedNotification"),
    (messages.PatchNews, "FileChangePatchUpdatedNotification"),
    (messages.ProgressNews, "McpToolCallProgressNotification"),
    (messages.PlanNews, "TurnPlanUpdatedNotification"),
    (messages.UsageNews, "ThreadTokenUsageUpdatedNotification"),
    (messages.ErrorNews, "ErrorNotification"),
    (messages.WarningNews, "WarningNotification"),
    (messages.NameNews, "ThreadNameUpdatedNotification"),
    (messages.LimitsNews, "AccountRateLimitsUpdatedNotification"),
    (messages.ResolvedNews, "ServerRequestResolvedNotification"),
    (messages.ThreadNews, "ThreadStartedNotification"),
    (messages.CommandAsked, "CommandExecutionRequestApprovalParams"),
    (messages.FileChangeAsked, "FileChangeRequestApprovalParams"),
    (messages.PermissionsAsked, "PermissionsRequestApprovalParams"),
    (messages.UserInputAsked, "ToolRequestUserInputParams"),
    (messages.ElicitationAsked, "McpServerElicitationRequestParams"),
    (messages.Opened, "ThreadStartResponse"),
    (messages.Opened, "ThreadResumeResponse"),
    (messages.Opened, "ThreadForkResponse"),
    (messages.TurnOpened, "TurnStartResponse"),
    (messages.ThreadPage, "ThreadListResponse"),
    (messages.ThreadRead, "ThreadReadResponse"),
    (messages.ItemPage, "ThreadItemsListResponse"),
    (messages.ModelPage, "ModelListResponse"),
)
SENT = (
    (messages.ThreadSettings, "ThreadStartParams"),
    (messages.OldThread, "ThreadResumeParams"),
    (messages.OldThread, "ThreadForkParams"),
    (messages.TurnStart, "TurnStartParams"),
    (messages.TurnSteer, "TurnSteerParams"),
    (messages.TurnInterrupt, "TurnInterruptParams"),
    (messages.ThreadOf, "ThreadReadParams"),
    (messages.ThreadOf, "ThreadDeleteParams"),
    (messages.ThreadOf, "ThreadUnsubscribeParams"),
    (messages.ThreadList, "ThreadListParams"),
    (messages.ItemList, "ThreadItemsListParams"),
)
# What we write and no published schema has, and why.
KNOWN = {
    "ThreadSettings.runtimeWorkspaceRoots": "experimental, and not in the inventory",
    "OldThread.runtimeWorkspaceRoots": "experimental, and not in the inventory",
}
# Of what we only read it is no matter that we could not write it, and the other way round.
ONLY_WRITTEN = ("is required, and ours does not write it", "is required, and ours leaves it out")
ONLY_READ = ("may be absent, and ours requires it", "which ours does not read")


def _misfits(pairs: tuple[tuple[type, str], ...], apart: tuple[str, ...]) -> list[str]:
    found = fit(pairs, Published(ALL)).misfits
    return [str(each) for each in found if not any(words in each.what for words in apart)]


def test_all_that_may_come_can_be_read() -> None:
    assert _misfits(READ, ONLY_WRITTEN) == []


def test_what_we_send_has_what_it_must_have_and_nothing_unknown() -> None:
    found = _misfits(SENT, ONLY_READ)
    assert found == [f"{where}: ours reads it, and it is not published" for where in sorted(KNOWN)]


def test_no_type_that_we_send_is_left_out_of_the_comparison() -> None:
    assert {kind for kind, _ in SENT} == {*Sent.__subclasses__(), messages.OldThread}


def test_every_kind_of_item_is_known() -> None:
    tags = {each.split("<")[1].removesuffix(">") for each in STABLE.definitions if _is_item(each)}
    assert tags == {kind.__struct_config__.tag for kind in messages.CodexItem.__subclasses__()}


def _is_item(definition: str) -> bool:
    return definition.startswith("ThreadItem<") and definition.count("<") == 1


def test_every_request_that_is_published_has_an_answer() -> None:
    published = STABLE.definitions["ServerRequest"]
    assert isinstance(published, dict)
    refused = {
        "account/chatgptAuthTokens/refresh",
        "attestation/generate",
    }  # of a client that signed in by itself
    assert {*published} - refused <= {*ANSWERS}
    assert {*SHAPES} <= {*ANSWERS}


@pytest.mark.parametrize("method", [*READERS, *SILENT])
def test_every_notification_that_we_name_is_published(method: str) -> None:
    published = STABLE.definitions["ServerNotification"]
    assert isinstance(published, dict)
    assert method in published or method in EXPERIMENTAL


EXPERIMENTAL = {"thread/settings/updated"}
