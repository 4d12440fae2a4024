import gc
import signal
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.postgres import Postgres, shared_postgres

# Whoever starts the tests in the background of a shell has them ignore SIGINT, and with them every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# No test depends on being fast: examples that are slow to make on a busy machine are no defect.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Begun first, so that no process is left with one of them when the others are done. The end of a run says which belong here.
LONG = (
    *(
        "test_newcomer.py",
        "test_up.py",
        "test_kill.py",
        "test_restarts.py",
        "test_exec.py",
        "test_servers_real.py",
    ),
    *(
        "test_accepted.py",
        "test_acp_agents.py",
        "test_sandbox_agent_sdk.py",
        "test_sessions_api.py",
        "test_http.py",
    ),
    *(
        "test_sessions.py",
        "test_opened.py",
        "test_real_sessions.py",
        "test_asking_real.py",
        "test_restart.py",
    ),
    *("test_crash.py", "test_confined.py", "test_hostile_repository.py", "test_claude_agent_acp.py"),
    *("test_real_server.py", "test_acp.py", "test_mischief.py", "test_wheel.py", "test_real_agent.py"),
)
TOLD = 10  # files that took longest

_seconds: dict[str, float] = defaultdict(float)  # by file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if len(_seconds) > 1:
        terminalreporter.section(f"the files that took longest, of {len(_seconds)}")
        for file, seconds in sorted(_seconds.items(), key=lambda each: -each[1])[:TOLD]:
            terminalreporter.write_line(f"{seconds:6.1f} s  {file}")


@pytest.fixture(scope="session")
def postgres_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Postgres]:
    """One for all processes of a run, started by the first test that asks for it."""
    own = tmp_path_factory.getbasetemp()
    with shared_postgres(own.parent if hasattr(request.config, "workerinput") else own) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """A test makes databases of its own in it, which are dropped after it."""
    yield postgres_server
    postgres_server.drop_databases()
