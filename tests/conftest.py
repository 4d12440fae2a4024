import gc
import os
import signal
import ssl
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpcore2
import pytest
from hypothesis import HealthCheck, settings
from tests.postgres import Postgres, shared_postgres
from tests.sqlite_template import use_template
from tools.spread import PART, left_out

# Whoever starts the tests in the background of a shell has them ignore SIGINT, and with them every program they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


use_template()

# No test depends on being fast: examples that are slow to make on a busy machine are no defect.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("busy"), max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    """Where heavy tests are left out, there are fewer examples, of tests that do not say how many they want."""
    settings.load_profile("quick" if "not heavy" in config.option.markexpr else "busy")


# A client of httpx2 reads all certificates of the machine, in thirty milliseconds: those of one process read them once.
_read_certificates = httpcore2.default_ssl_context


@cache
def _certificates(_named: tuple[str | None, ...], trust_env: bool) -> ssl.SSLContext:
    return _read_certificates(_trust_env=trust_env)


def _default_ssl_context(*, _trust_env: bool = True) -> ssl.SSLContext:
    return _certificates((os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")), _trust_env)


httpcore2.default_ssl_context = _default_ssl_context


TOLD = 10  # files that took longest
GARBAGE = (
    20_000,
    20,
    20,
)  # new objects between two looks for garbage: after 700, as usual, looks are a twentieth of a run

_seconds: dict[str, float] = defaultdict(float)  # by file


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out unread what the marks of the whole file leave out."""
    return left_out(collection_path, config.option.markexpr) or None


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look through it again and again."""
    if gc.get_freeze_count():
        return  # a process that takes files comes here for each
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


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
    with shared_postgres(own.parent.parent if request.config.getoption(PART, None) else own) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """A test makes databases of its own in it, which are dropped after it."""
    yield postgres_server
    postgres_server.drop_databases()
