from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.database.databases import BOTH, Either, make, opened
from tests.store.installation import add_workspaces


@pytest.fixture(params=BOTH)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Either]:
    """Each of the two databases, fresh, with the newest schema and two workspaces."""
    async with opened(make(request.param, tmp_path, request)) as either:
        await add_workspaces(either)
        yield either
