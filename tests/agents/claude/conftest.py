from __future__ import annotations

import pytest
from tests import real_agents

_VARIABLE = "CLAUDE_CODE_EXECUTABLE="


@pytest.fixture(scope="session")
def claude() -> str:
    """The real program; without a network to get it from, the test is skipped."""
    try:
        argv = real_agents.agent("claude")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    named = [word.removeprefix(_VARIABLE) for word in argv if word.startswith(_VARIABLE)]
    return named[0] if named else next(word for word in argv[1:] if "=" not in word)
