"""A plugin for pytest (`-p tools.spread --processes N`): N processes, each of which takes a file when it is done with its last.

A file is read by the process that runs its tests and by no other. Of processes of xdist each reads every file, and each phase of each
test is a message: one part in sixteen of the CPU of all tests, a quarter of the time of the quick ones. Here a test that passed is one line in a file.

The first process reads no test. It starts the others, and says what they have to say. Where one of them ends before its time, the test
that ended it has failed, and another process goes on behind that one.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import collect_one_node

PROCESSES, PART, GO_ON = "--processes", "--part", "--go-on"
PR_SET_PDEATHSIG = 1
LOOK = 0.2  # seconds between two looks at what the others said
ENDS = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
END_LIMIT = 60.0  # seconds from an end that was told to that of its process: that of whatever lasts as long
INTERRUPT_LIMIT = 20.0  # seconds for an interrupted test to end what it has started
SAID = 2000  # characters of the last words of one that ended before its time
TOLD = 20  # times in a run that it is said how far it is
# Begun first, so that no process is left with one of them when the others are done: the end of a run says which belong here. Then the
# largest files; the smallest come last.
LONG = (
    *("test_newcomer.py", "test_servers_real.py", "test_restarts.py", "test_adding.py", "test_accessibility.py"),
    *("test_waits.py", "test_whole_server.py", "test_claude_agent_acp.py", "test_inbox_page.py"),
    *("test_session_page.py", "test_up.py", "test_exec.py", "test_access_table.py", "test_retention_killed.py"),
    *("test_growth.py", "test_kill.py", "test_detached.py", "test_accepted.py", "test_acp_agents.py"),
    *("test_sandbox_agent_sdk.py", "test_sessions_api.py", "test_http.py", "test_sessions.py", "test_opened.py"),
    *("test_real_sessions.py", "test_asking_real.py", "test_restart.py", "test_crash.py", "test_confined.py"),
    *("test_hostile_repository.py", "test_sdks.py", "test_real_server.py", "test_acp.py", "test_mischief.py"),
    *("test_wheel.py", "test_real_agent.py", "test_entries.py", "test_hostile.py", "test_places.py"),
    *("test_projected.py", "test_pipes.py", "test_start.py", "test_tree.py"),
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(PROCESSES, type=int, default=2, metavar="N", help="how many processes run tests")
    parser.addoption(PART, metavar="FOLDER", help="be one of them, and keep reports in that folder")
    parser.addoption(GO_ON, metavar="TEST", help="begin behind that test, in its file")


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.collectonly and not config.option.help:
        part = config.getoption(PART)
        config.pluginmanager.register(Part(Path(part), config) if part else Whole(config))


def left_out(path: Path, marks: str) -> bool:
    """Whether a file's `pytestmark` has a mark that is not to be run: half of a quick run's files."""
    return path.suffix == ".py" and bool((named := _not(marks)) and named.search(path.read_text("utf-8")))


@cache
def _not(marks: str) -> re.Pattern[str] | None:
    if not re.fullmatch(r"not \w+( and not \w+)*", marks):
        return None
    names = "|".join(re.findall(r"not (\w+)", marks))
    return re.compile(rf"^pytestmark = .*\bpytest\.mark\.({names})\b", re.MULTILINE)


def files_to_run(names: Sequence[str], marks: str) -> list[Path]:
    """The files of these folders, in the order in which they are taken."""
    places = {name: place for place, name in enumerate(LONG)}
    given = [Path(name).resolve() for name in names]
    found = {path for each in given for path in ([each] if each.is_file() else each.rglob("test_*.py"))}
    return sorted(
        (path for path in found if not left_out(path, marks)),
        key=lambda path: (places.get(path.name, len(LONG)), -path.stat().st_size, path),
    )


class Part:
    """One of the processes that run tests."""

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        ctypes.CDLL(None).prctl(
            PR_SET_PDEATHSIG, signal.SIGKILL
        )  # it ends with the one that started it, however that ends
        self._files: list[str] = json.loads((folder.parent / "files").read_text())
        # The long ones wait for most of their time: every second process begins behind them, so that somebody always works.
        behind_long = sum(Path(file).name in LONG for file in self._files) if int(folder.name[1:]) % 2 else 0
        self._numbers = [*range(behind_long, len(self._files)), *range(behind_long)]
        self._taken = folder.parent / "taken"
        self._behind: str | None = config.getoption(GO_ON)
        self._config = config
        self._lines: list[str] = []
        self._file = (folder / "reports").open("w")
        self._phases: list[pytest.TestReport] = []  # of the test that runs
        self._modules: dict[str, pytest.Collector] = {}
        self._wanted: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files first; from then on read the one that is wanted. What others do around a collection is done around each."""
        if self._wanted is None:
            session.perform_collect(genitems=False)
            return True
        session.items = []
        if (module := self._modules.get(self._wanted)) is not None:
            session.items = [*session.genitems(module)]
        else:
            self.pytest_collectreport(
                pytest.CollectReport(self._wanted, "failed", "pytest does not find it", [])
            )
        hook = self._config.hook
        hook.pytest_collection_modifyitems(session=session, config=self._config, items=session.items)
        hook.pytest_collection_finish(session=session)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item | pytest.Collector]) -> None:
        if (
            self._wanted is None
        ):  # here, as what is not gone through by the end of a collection has no fixtures
            for node in items:
                self._find(node)

    def _find(self, node: pytest.Item | pytest.Collector) -> None:
        """Keep the files below a node. Folders are gone through once, as the fixtures of their `conftest.py` belong to them."""
        if isinstance(node, pytest.Directory):
            report = collect_one_node(node)
            if not report.passed:
                node.ihook.pytest_collectreport(report=report)
            for each in report.result if report.passed else ():
                self._find(each)
        elif isinstance(node, pytest.Collector):
            self._modules[os.path.relpath(node.path)] = node

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for items in self._files_of_tests(session):
            # Behind the last one of a file comes the run itself: what lasts as long as that stays.
            for item, following in zip(items, [*items[1:], session], strict=False):
                self._tell("test", item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        return True

    def _files_of_tests(self, session: pytest.Session) -> Iterator[list[pytest.Item]]:
        if self._behind is not None:
            found = self._read(session, self._behind.partition("::")[0])
            names = [item.nodeid for item in found]
            yield found[names.index(self._behind) + 1 :]
        for number in self._numbers:
            try:
                (self._taken / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            yield self._read(session, self._files[number])

    def _read(self, session: pytest.Session, file: str) -> list[pytest.Item]:
        self._tell("file", file)
        self._wanted = file
        self._config.hook.pytest_collection(session=session)
        return [*session.items]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._tell("report", self._written(report))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._phases.append(report)
        if report.when != "teardown":
            return
        phases, self._phases = self._phases, []
        if len(phases) == 3 and all(each.passed and not hasattr(each, "wasxfail") for each in phases):
            seconds = sum(each.duration for each in phases)
            self._lines.append(json.dumps(("passed", (report.nodeid, report.location, seconds))))
        else:
            self._lines += [json.dumps(("report", self._written(each))) for each in phases]

    def _written(self, report: pytest.CollectReport | pytest.TestReport) -> object:
        return self._config.hook.pytest_report_to_serializable(config=self._config, report=report)

    def _tell(self, kind: str, what: object) -> None:
        """At once, with what is not told yet: this process may be ended by what it does next."""
        self._file.write("\n".join([*self._lines, json.dumps((kind, what)), ""]))
        self._file.flush()
        self._lines = []

    @pytest.hookimpl(trylast=True)  # behind what is taken down with the run: that may fail
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in ENDS:
            self._tell("end", int(exitstatus))

    def pytest_unconfigure(self) -> None:
        self._file.close()


class Process:
    """Another process, as the first one sees it."""

    def __init__(self, config: pytest.Config, whole: Path, name: str, behind: str | None) -> None:
        folder = whole / name
        folder.mkdir()
        self._output, self._reports = folder / "output", folder / "reports"
        self._reports.touch()
        self._file = self._reports.open()
        self._rest = ""
        self.file, self.test = "", ""
        self._status: int | None = None  # with which it means to end, and since when
        self._told_at = 0.0
        go_on = [f"{GO_ON}={behind}"] if behind is not None else []
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", *config.invocation_params.args, "-p", "no:tools.again"),
                    *(f"--basetemp={folder / 't'}", f"{PART}={folder}", *go_on),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def is_over(self) -> bool:
        if self._status is not None and time.monotonic() - self._told_at > END_LIMIT:
            self._process.kill()
        return self._process.poll() is not None

    @property
    def is_done(self) -> bool:
        """Whether it came to its end: said so, and ended as it said."""
        return self._status is not None and self._process.returncode == self._status

    def news(self) -> Iterator[tuple[str, Any]]:
        """What it has told since the last look."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for kind, what in map(json.loads, lines):
            match kind:
                case "file":
                    self.file, self.test = what, ""
                case "test":
                    self.test = what
                case "end":
                    self._status, self._told_at = what, time.monotonic()
            yield kind, what

    def last_words(self) -> str:
        said = self._output.read_text(errors="replace")[-SAID:]
        return f"its process ended before its time, with {self._process.returncode}; it said last:\n{said}"

    def interrupt(self) -> None:
        """Have it end what its test has started, where the run does not come to its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        try:
            self._process.wait(INTERRUPT_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._file.close()


class Whole:
    """The process that was asked for tests: it has the others run them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._others: list[Process] = []
        self._tests = 0
        self._begun: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        config = self._config
        files = files_to_run(config.args, config.option.markexpr)
        base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as xdist does
        (base / "taken").mkdir()
        (base / "files").write_text(json.dumps([os.path.relpath(path) for path in files]))
        self._others = [
            Process(config, base, f"p{number}", None)
            for number in range(min(config.getoption(PROCESSES), len(files)))
        ]
        at_work, begun, told = [*self._others], 0, 0
        while at_work and not (session.shouldfail or session.shouldstop):
            for each in [*at_work]:
                is_over = each.is_over  # looked at first: what it told until then is heard now
                begun += sum(self._hear(kind, what) for kind, what in each.news())
                if is_over:
                    at_work.remove(each)
                    if not each.is_done:
                        at_work += self._mourn(each, base)
            if files and begun * TOLD // len(files) > told:
                told = begun * TOLD // len(files)
                self._say(f" [{min(begun, len(files))} of {len(files)} files begun]")
            time.sleep(LOOK)
        session.testscollected = self._tests
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        for file in sorted({os.path.relpath(path) for path in files} - self._begun):
            self._report(pytest.CollectReport(file, "failed", "no process has begun it", []))
        return True

    def _hear(self, kind: str, what: Any) -> bool:
        """Say what another process told; whether it was that it has begun a file."""
        if kind == "file":
            self._begun.add(what)
        elif kind == "test":
            self._tests += 1
        elif kind == "passed":
            nodeid, location, seconds = what
            self._report(
                pytest.TestReport(nodeid, tuple(location), {}, "passed", None, "call", duration=seconds)
            )
        elif kind == "report":
            if isinstance(what["longrepr"], list):
                what["longrepr"] = tuple(what["longrepr"])  # of what was skipped, as JSON has it
            self._report(self._config.hook.pytest_report_from_serializable(config=self._config, data=what))
        return kind == "file"

    def _mourn(self, other: Process, base: Path) -> list[Process]:
        """Count the test, or the file, that ended a process as failed; another process goes on behind it."""
        words = other.last_words()
        if other.test:
            where = (other.file, None, other.test.partition("::")[2])
            self._report(pytest.TestReport(other.test, where, {}, "failed", words, "call"))
        else:
            self._report(pytest.CollectReport(other.file or "the tests", "failed", words, []))
        if not other.file:
            return []  # it did not even begin, and nor would another
        self._others.append(Process(self._config, base, f"p{len(self._others)}", other.test or None))
        return self._others[-1:]

    def _report(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if isinstance(report, pytest.TestReport):
            self._config.hook.pytest_runtest_logreport(report=report)
        else:
            self._config.hook.pytest_collectreport(report=report)

    def _say(self, text: str) -> None:
        if (reporter := self._config.pluginmanager.get_plugin("terminalreporter")) is not None:
            reporter.write_line(text)

    def pytest_unconfigure(self) -> None:
        for each in self._others:
            each.interrupt()
        for each in self._others:
            each.close()
