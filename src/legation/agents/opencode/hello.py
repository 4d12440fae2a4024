"""What OpenCode can do, as the host is told."""

from __future__ import annotations

from typing import Final

from legation.wire.acp.capabilities import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    McpCapabilities,
    PromptCapabilities,
    SessionCapabilities,
    Supported,
)
from legation.wire.acp.shape import PROTOCOL_VERSION

HELLO: Final = InitializeResponse(
    protocol_version=PROTOCOL_VERSION,
    agent_capabilities=AgentCapabilities(
        load_session=True,
        prompt_capabilities=PromptCapabilities(image=True, audio=True, embedded_context=True),
        mcp_capabilities=McpCapabilities(http=True, sse=True),
        session_capabilities=SessionCapabilities(
            list=Supported(), delete=Supported(), resume=Supported(), close=Supported()
        ),
    ),
    agent_info=Implementation(name="opencode", title="OpenCode", version="unknown"),
)
