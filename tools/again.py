"""A plugin for pytest (`-p tools.again`): runs what failed once more, alone, when all else has ended.

Of ten thousand tests one or two may fail because the machine is busy. That is a defect of these tests and is the last thing a run says,
but no reason to throw away what passed. More than a few failures are not by chance, and who fails again is broken: then the run has failed.
"""

import subprocess
import sys
from collections.abc import Generator

import pytest

FEW = 5  # failures that may be by chance
ALONE = "--alone"  # the option of the second run, in which every test must pass

_failed: dict[str, None] = {}  # names of tests, in order
_unreadable: list[str] = []
_passed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(ALONE, action="store_true", help="fail unless every test passes")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _unreadable.append(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test has failed if its setup, its call or its teardown has, and with them its process."""
    if report.failed:
        _failed[report.nodeid] = None
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # the outermost: what it says comes last
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    yield
    if hasattr(session.config, "workerinput"):
        return  # its reports go to who started it
    if session.config.getoption(ALONE):
        if session.exitstatus == pytest.ExitCode.OK and len(_passed) != session.testscollected:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED  # one was skipped
    # Any other code is not that of a failed test: nothing was found, somebody interrupted it, pytest itself failed.
    elif session.exitstatus == pytest.ExitCode.TESTS_FAILED and _failed and not _unreadable:
        session.exitstatus = _run_again([*_failed])


def _run_again(failed: list[str]) -> int:
    if len(failed) > FEW:
        _say(f"{len(failed)} tests failed, more than {FEW}: none is run again")
        return pytest.ExitCode.TESTS_FAILED
    _say(f"{len(failed)} failed: once more, alone")
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tools.again", ALONE, *failed], check=False
    ).returncode
    named = ", ".join(failed)
    _say(
        f"unsteady: passed only when run alone: {named}"
        if code == 0
        else f"failed, and not all passed alone: {named}"
    )
    return code


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)
