import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.sessions.talk import Talk, open_talk


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Talk]:
    async with asyncio.timeout(110), open_talk(tmp_path, request) as made:
        yield made
