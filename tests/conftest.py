from collections.abc import Iterator

import pytest
from tests.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Started by the first test that asks for it; every test makes a database of its own in it."""
    with running_postgres() as server:
        yield server
