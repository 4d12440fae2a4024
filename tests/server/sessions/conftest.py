import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.sessions.session_client import SessionClient, open_session_client


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as made:
        yield made
