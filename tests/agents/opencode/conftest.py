from __future__ import annotations

import pytest
from tests import real_agents


@pytest.fixture(scope="session")
def opencode() -> str:
    """The real program; without a network to get it from, the test is skipped."""
    try:
        argv = real_agents.agent("opencode")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    return next(word for word in argv if word.endswith("/opencode"))
