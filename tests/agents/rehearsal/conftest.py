from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agents.rehearsal.raw_client import RawClient

StartAgent = Callable[..., RawClient]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def start_agent(home: Path) -> Iterator[StartAgent]:
    clients: list[RawClient] = []

    def start(*options: str, env: dict[str, str] | None = None, executes: bool = True) -> RawClient:
        allowed = ("--execute",) if executes else ()
        clients.append(RawClient(home, *allowed, *options, env=env))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def client(start_agent: StartAgent) -> RawClient:
    return start_agent()
