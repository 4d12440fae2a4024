from __future__ import annotations

import pytest
from tests import real_agents


@pytest.fixture(scope="session")
def claude_agent_acp() -> tuple[str, ...]:
    """How the real agent is started; without a network to get it from, the test is skipped."""
    try:
        return real_agents.agent("claude-acp")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
