"""A plugin for pytest (`-p tools.halves`): two processes, each of which reads and runs one half of the files.

Of processes of xdist each reads every file, and each phase of each test is a message to one that does nothing but listen: a quarter of the time
of quick tests. Here nobody listens. What the second half had to say is said again by the first, when both are done.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from functools import cache
from pathlib import Path

import pytest

REPORTS = "--second-half"  # the option of the second process, and its value the file for reports
WEIGHT = 12_000  # bytes of a test file that take a second: files differ, halves of them little
# Seconds of files that take longer than their size says, or wait.
SECONDS = {
    "test_entries.py": 10.0,
    "test_hostile.py": 4.5,
    "test_places.py": 3.3,
    "test_projected.py": 3.0,
    "test_pipes.py": 3.0,
    "test_start.py": 2.6,
    "test_tree.py": 2.2,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        REPORTS, metavar="FILE", help="run the second half of the files, and write reports there"
    )


def left_out(path: Path, marks: str) -> bool:
    """Whether a file's `pytestmark` has a mark that is not to be run: half of a quick run's files."""
    return path.suffix == ".py" and bool((named := _not(marks)) and named.search(path.read_text("utf-8")))


@cache
def _not(marks: str) -> re.Pattern[str] | None:
    if not re.fullmatch(r"not \w+( and not \w+)*", marks):
        return None
    names = "|".join(re.findall(r"not (\w+)", marks))
    return re.compile(rf"^pytestmark = .*\bpytest\.mark\.({names})\b", re.MULTILINE)


def second_half(files: Iterable[Path]) -> set[Path]:
    """The heaviest file first, each to the half that has less."""
    weighed = {path: SECONDS.get(path.name, path.stat().st_size / WEIGHT) for path in files}
    halves: tuple[set[Path], set[Path]] = (set(), set())
    sums = [0.0, 0.0]
    for path in sorted(weighed, key=lambda path: (-weighed[path], path)):
        lighter = sums.index(min(sums))
        halves[lighter].add(path)
        sums[lighter] += weighed[path]
    return halves[1]


class Half:
    """The files of one process."""

    def __init__(self, config: pytest.Config) -> None:
        marks = config.option.markexpr
        files = (path for name in config.args for path in Path(name).resolve().rglob("test_*.py"))
        self.second = second_half(path for path in files if not left_out(path, marks))

    def is_mine(self, path: Path) -> bool:
        raise NotImplementedError

    @pytest.hookimpl
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
        return True if is_test and not self.is_mine(collection_path) else None


class SecondHalf(Half):
    """Says what it has to say to a file."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self.config = config
        self.file = Path(config.getoption(REPORTS)).open("w")  # noqa: SIM115 - closed by pytest_unconfigure

    def is_mine(self, path: Path) -> bool:
        return path in self.second

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.write(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.write(report)

    def write(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.file.write(json.dumps(data) + "\n")

    def pytest_unconfigure(self) -> None:
        self.file.close()


class FirstHalf(Half):
    """Starts the second process, and says what that had to say."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self.folder = tempfile.TemporaryDirectory()
        self.reports, self.output = Path(self.folder.name, "reports"), Path(self.folder.name, "output")
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", *config.invocation_params.args),
                    *("-p", "no:tools.again", REPORTS, str(self.reports)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def is_mine(self, path: Path) -> bool:
        return path not in self.second

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        code = self.process.wait()
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"the second half ended with {code}: {self.output.read_text()}")
        said = [json.loads(line) for line in self.reports.read_text().splitlines()]
        session.testscollected += len({each["nodeid"] for each in said})
        for data in said:
            report = session.config.hook.pytest_report_from_serializable(config=session.config, data=data)
            if isinstance(report, pytest.TestReport):
                session.config.hook.pytest_runtest_logreport(report=report)
            else:
                session.config.hook.pytest_collectreport(report=report)
        return result

    def pytest_unconfigure(self) -> None:
        self.process.kill()  # where the first half did not come to its end
        self.process.wait()
        self.folder.cleanup()


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.collectonly and not config.option.help:
        config.pluginmanager.register((SecondHalf if config.getoption(REPORTS) else FirstHalf)(config))
