"""Which of our ACP types stands for which published one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from legation.agents.schemas.fitting import Fitted, fit
from legation.agents.schemas.forms import Published
from legation.agents.schemas.inventory import Inventory
from legation.wire.acp import capabilities, elicitation, permission, reverse, rpc, sessions, updates

# Types that are reached from these are not named: they are compared where they stand.
OURS: Final[tuple[tuple[object, str], ...]] = (
    (capabilities.InitializeRequest, "InitializeRequest"),
    (capabilities.InitializeResponse, "InitializeResponse"),
    (capabilities.AuthenticateRequest, "AuthenticateRequest"),
    (sessions.NewSessionRequest, "NewSessionRequest"),
    (sessions.NewSessionResponse, "NewSessionResponse"),
    (sessions.LoadSessionRequest, "LoadSessionRequest"),
    (sessions.SessionSetup, "LoadSessionResponse"),
    (sessions.ResumeSessionRequest, "ResumeSessionRequest"),
    (sessions.SessionSetup, "ResumeSessionResponse"),
    (sessions.ListSessionsRequest, "ListSessionsRequest"),
    (sessions.ListSessionsResponse, "ListSessionsResponse"),
    (sessions.SessionRequest, "CloseSessionRequest"),
    (sessions.SessionRequest, "DeleteSessionRequest"),
    (sessions.SessionRequest, "CancelNotification"),
    (sessions.SessionNotification, "SessionNotification"),
    (sessions.SetModeRequest, "SetSessionModeRequest"),
    (sessions.SetConfigOptionRequest, "SetSessionConfigOptionRequest"),
    (sessions.SetConfigOptionResponse, "SetSessionConfigOptionResponse"),
    (sessions.PromptRequest, "PromptRequest"),
    (sessions.PromptResponse, "PromptResponse"),
    (updates.SessionUpdate, "SessionUpdate"),
    (permission.RequestPermissionRequest, "RequestPermissionRequest"),
    (permission.RequestPermissionResponse, "RequestPermissionResponse"),
    (elicitation.CreateElicitationRequest, "CreateElicitationRequest"),
    (elicitation.CreateElicitationResponse, "CreateElicitationResponse"),
    (elicitation.CompleteElicitationNotification, "CompleteElicitationNotification"),
    (reverse.ReadTextFileRequest, "ReadTextFileRequest"),
    (reverse.ReadTextFileResponse, "ReadTextFileResponse"),
    (reverse.WriteTextFileRequest, "WriteTextFileRequest"),
    (reverse.CreateTerminalRequest, "CreateTerminalRequest"),
    (reverse.CreateTerminalResponse, "CreateTerminalResponse"),
    (reverse.TerminalRequest, "TerminalOutputRequest"),
    (reverse.TerminalRequest, "WaitForTerminalExitRequest"),
    (reverse.TerminalRequest, "KillTerminalRequest"),
    (reverse.TerminalRequest, "ReleaseTerminalRequest"),
    (reverse.TerminalOutputResponse, "TerminalOutputResponse"),
    (reverse.TerminalExitStatus, "WaitForTerminalExitResponse"),
    (rpc.CancelRequestNotification, "CancelRequestNotification"),
    (rpc.RpcError, "Error"),
)


# What we read and a published schema does not have, and why: by its place, or in all its words where a place has more.
KNOWN: Final = {
    "PromptResponse.usage": "in the unstable schema only, and agents send it",
    **{
        f"SessionUpdate: ours reads a variant {tag}, and it is not published": "in the unstable schema only"
        for tag in ("plan_update", "plan_removed")
    },
    "SessionSetup.models": "an older form, which agents still send",
    "NewSessionResponse.models": "an older form, which agents still send",
}


def acp_fitted(inventory: Inventory) -> Fitted:
    found = fit(OURS, Published(inventory))
    return replace(
        found, misfits=tuple(each for each in found.misfits if not {each.where, str(each)} & KNOWN.keys())
    )
