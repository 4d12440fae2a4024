import signal
from collections.abc import Iterator

import pytest
from tests.postgres import Postgres, running_postgres

# Whoever starts the tests in the background of a shell has them ignore SIGINT, and with them every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Started by the first test that asks for it; every test makes a database of its own in it."""
    with running_postgres() as server:
        yield server
