import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.postgres import Postgres, running_postgres

# Whoever starts the tests in the background of a shell has them ignore SIGINT, and with them every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No test depends on being fast: examples that are slow to make on a busy machine are no defect.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Files that take minutes, most of them waiting for a package index: begun first, the other process does the rest meanwhile.
LONG = ("test_newcomer.py", "test_wheel.py", "test_servers_real.py", "test_accepted.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Started by the first test that asks for it; every test makes a database of its own in it."""
    with running_postgres() as server:
        yield server
