from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.server_process import Running
from tests.server.acp.acp_server import Client, connected, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all tests of a file: each has a server id of its own."""
    with serving(tmp_path_factory.mktemp("acp") / "home") as found:
        yield found


@pytest.fixture
async def client(server: Running, tmp_path: Path) -> AsyncIterator[Client]:
    async with connected(server, f"test-{uuid4()}", tmp_path / "work") as found:
        yield found
