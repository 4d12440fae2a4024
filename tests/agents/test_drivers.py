"""What drivers have in common: how a session is opened, and where things are in their folders."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import legation.agents
from legation.agents.acp import AcpAgent
from legation.agents.amp import AmpAgent
from legation.agents.claude import ClaudeAgent
from legation.agents.codex import CodexAgent
from legation.agents.driver import Abilities, OpenRequest
from legation.agents.opencode import OpenCodeAgent
from legation.errors import CapabilityUnsupported
from legation.wire.acp.methods import (
    AgentCapabilities,
    McpCapabilities,
    McpServer,
    SessionCapabilities,
    Supported,
)
from legation.wire.acp.rpc import AgentMethod

DRIVERS = (AcpAgent, AmpAgent, ClaudeAgent, CodexAgent, OpenCodeAgent)
FOLDERS = ("amp", "claude", "codex", "opencode")
ROOMS = {"driver", "session", "messages", "translate", "tools", "permissions", "options", "launch"}
# Rooms that not every driver has, and why.
MORE = {
    "server": {"codex", "opencode"},  # one program serves several sessions
    "turn": {"claude", "opencode"},  # prompts and their ends, which permissions ask about too
    "gate_delegate": {"amp"},  # a program of its own, which Amp runs
}
LACKING = {"amp": {"messages"}}  # its lines are Claude Code's


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("method", ["new_session", "fork_session", "load_session", "resume_session"])
def test_every_driver_opens_a_session_by_one_request(driver: type, method: str) -> None:
    named = [*inspect.signature(getattr(driver, method)).parameters]
    assert named in (["self", "request", "timeout"], ["self", "request", "timeout", "on_answer"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_same_rooms_have_the_same_names(folder: str) -> None:
    root = Path(legation.agents.__path__[0])
    found = {path.stem for path in (root / folder).glob("*.py")} - {"__init__"}
    more = {room for room, folders in MORE.items() if folder in folders}
    assert found == (ROOMS | more) - LACKING.get(folder, set())


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        OpenRequest("/w").cwd = "/"  # type: ignore[misc]


def test_what_is_admitted_lacks_no_list_and_keeps_all_else() -> None:
    able = AgentCapabilities(session_capabilities=SessionCapabilities(additional_directories=Supported()))
    request = OpenRequest("/w", (McpServer(name="files", command="serve"),), ("/more",), "s1")
    admitted = Abilities("agent", able).admit(AgentMethod.SESSION_LOAD, request)
    [server] = admitted.mcp_servers
    assert (server.name, server.args, server.env) == ("files", (), ())
    assert (admitted.cwd, admitted.additional_directories, admitted.session_id) == ("/w", ("/more",), "s1")


@pytest.mark.parametrize(
    ("request_", "lacking"),
    [
        (OpenRequest("/w", additional_directories=("/more",)), "sessionCapabilities.additionalDirectories"),
        (OpenRequest("/w", (McpServer(name="web", type="sse", url="http://h"),)), "mcpCapabilities.sse"),
    ],
)
def test_what_the_agent_did_not_declare_is_not_admitted(request_: OpenRequest, lacking: str) -> None:
    able = AgentCapabilities(mcp_capabilities=McpCapabilities(http=True))
    with pytest.raises(CapabilityUnsupported) as caught:
        Abilities("agent", able).admit(AgentMethod.SESSION_NEW, request_)
    assert caught.value.data == {"method": "session/new", "capability": lacking}
