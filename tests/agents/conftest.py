from __future__ import annotations

import pytest
from tests import real_agents


@pytest.fixture(scope="session")
def claude_agent_acp() -> tuple[str, ...]:
    """How the real agent is started; without a network to get it from, the test is skipped."""
    try:
        folder = real_agents.install("claude-agent-acp")
        entry = folder / "node_modules" / "@agentclientprotocol" / "claude-agent-acp" / "dist" / "index.js"
        return (str(real_agents.node()), str(entry))
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
