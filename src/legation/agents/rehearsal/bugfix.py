"""The answer to a plain prompt: find a failing test, find a one-line fix, make it, test again. It asks before it runs
anything, be it in a copy, and before it edits; it reads and searches without.

The fixer knows a few classic slips (`RULES`), each as a rewrite of one expression, and tries them in a scratch copy. A change
counts only if every test passes with it.
"""

import ast
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from legation.agents.rehearsal.steps import title
from legation.agents.rehearsal.turn import PromptTurn, StepFailedError, TurnCancelledError
from legation.agents.rehearsal.work import (
    CommandOutcome,
    FileEdit,
    ReportedCall,
    apply_change,
    ask_permission,
    read_file,
    run_command,
    run_process,
    text_content,
)

TEST_COMMAND = (sys.executable, "-B", "-m", "unittest")
TEST_LIMIT = 60.0  # the tests' time, each run
SEARCH_LIMIT = 60.0  # our own time for all tries together
MAX_TRIES = 60
MAX_FILES = 400  # a larger folder is not copied
SKIPPED = (".git", "__pycache__", ".venv", "venv", "node_modules", ".tox")
FAILURE = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.MULTILINE)
RAN = re.compile(r"^Ran (\d+) tests?", re.MULTILINE)

Rewrite: TypeAlias = tuple[ast.expr, str, str]  # what to replace, by what, and why


@dataclass(frozen=True, slots=True)
class TestRun:
    __test__ = False  # no test of pytest's, for all its name

    count: int
    passed: bool
    failing: tuple[tuple[str, str], ...]  # (test function, dotted name)

    @staticmethod
    def of(outcome: CommandOutcome) -> "TestRun":
        ran = RAN.search(outcome.output)
        failing = tuple((name, dotted) for name, dotted in FAILURE.findall(outcome.output))
        return TestRun(int(ran[1]) if ran else 0, outcome.code == 0, failing)


@dataclass(frozen=True, slots=True)
class Fix:
    path: str
    line: int
    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True)
class Search:
    fix: Fix | None
    tries: int


def search(folder: Path, changes: list[Fix], cancelled: threading.Event) -> Search:
    end, tries = time.monotonic() + SEARCH_LIMIT, 0
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        copy = Path(scratch) / "copy"
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(*SKIPPED))
        for fix in changes:
            if tries >= MAX_TRIES or time.monotonic() > end or cancelled.is_set():
                break
            tries += 1
            if _passes_with(fix, folder, copy, cancelled):
                return Search(fix, tries)
    return Search(None, tries)


def small_enough(folder: Path) -> bool:
    return sum(1 for _ in _files(folder, "*")) <= MAX_FILES


def apply(fix: Fix, text: str) -> str:
    lines = text.splitlines(keepends=True)
    lines[fix.line - 1] = lines[fix.line - 1].replace(fix.old, fix.new, 1)
    return "".join(lines)


def test_files(folder: Path, failing: tuple[tuple[str, str], ...]) -> list[str]:
    """The files of the failing tests, by the modules that their dotted names begin with."""
    found: dict[str, None] = {}
    for _, dotted in failing:
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            path = Path(*parts[:length]).with_suffix(".py")
            if (folder / path).is_file():
                found[str(path)] = None
                break
    return list(found)


def candidates(folder: Path, failing: tuple[tuple[str, str], ...]) -> list[Fix]:
    """Every one-line change it knows; first those in functions that the failing tests name."""
    named = _names_in_tests(folder, failing)
    ranked: list[tuple[bool, int, Fix]] = []
    for path in _files(folder, "*.py"):
        if not path.name.startswith("test"):
            ranked += _changes(folder, path, named)
    return [fix for _, _, fix in sorted(ranked, key=lambda entry: entry[:2])]


def _changes(folder: Path, path: Path, named: set[str]) -> Iterator[tuple[bool, int, Fix]]:
    source = path.read_text(errors="replace")
    for function, node in _nodes(source):
        for rank, rule in enumerate(RULES):
            for target, replacement, why in rule(node, source):
                if fix := _one_line(str(path.relative_to(folder)), source, target, replacement, why):
                    yield function not in named, rank, fix


def _one_line(path: str, source: str, target: ast.expr, replacement: str, why: str) -> Fix | None:
    if target.end_lineno != target.lineno:
        return None
    line = source.splitlines()[target.lineno - 1]
    data = line.encode()  # the tree counts columns in bytes
    changed = data[: target.col_offset] + replacement.encode() + data[target.end_col_offset :]
    return Fix(path, target.lineno, line.strip(), changed.decode().strip(), why)


def _nodes(source: str) -> Iterator[tuple[str, ast.AST]]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body:
                yield from ((function.name, node) for node in ast.walk(statement))


def _names_in_tests(folder: Path, failing: tuple[tuple[str, str], ...]) -> set[str]:
    names = {name for name, _ in failing}
    found: set[str] = set()
    for file in test_files(folder, failing):
        for function, node in _nodes((folder / file).read_text(errors="replace")):
            if function in names and isinstance(node, (ast.Name, ast.Attribute)):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def _passes_with(fix: Fix, folder: Path, copy: Path, cancelled: threading.Event) -> bool:
    original = (folder / fix.path).read_text(errors="replace")
    scratch = copy / fix.path
    scratch.write_text(apply(fix, original))
    outcome = run_process(TEST_COMMAND, copy, cancelled, TEST_LIMIT)
    scratch.write_text(original)
    return outcome.code == 0 and TestRun.of(outcome).count > 0


def _files(folder: Path, pattern: str) -> list[Path]:
    found = (path for path in folder.rglob(pattern) if not path.is_symlink() and path.is_file())
    return sorted(path for path in found if not set(path.relative_to(folder).parts) & set(SKIPPED))


def _range_end(node: ast.AST, source: str) -> Iterator[Rewrite]:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and node.args
    ):
        stop = node.args[0] if len(node.args) == 1 else node.args[1]
        yield stop, f"{ast.get_source_segment(source, stop)} + 1", "the range stops one short"


COMPARISONS: tuple[tuple[type[ast.cmpop], str, str, str], ...] = (
    (ast.Lt, "<", "<=", "the limit itself is left out"),
    (ast.LtE, "<=", "<", "the limit itself is let in"),
    (ast.Gt, ">", ">=", "the limit itself is left out"),
    (ast.GtE, ">=", ">", "the limit itself is let in"),
    (ast.Eq, "==", "!=", "the comparison is the wrong way round"),
    (ast.NotEq, "!=", "==", "the comparison is the wrong way round"),
)


def _comparison(node: ast.AST, source: str) -> Iterator[Rewrite]:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return
    text = (ast.get_source_segment(source, node) or "").encode()
    operator = (node.left.end_col_offset or 0) - node.col_offset
    for kind, symbol, other, why in COMPARISONS:
        if type(node.ops[0]) is kind:
            rest = text[operator:].replace(symbol.encode(), other.encode(), 1)
            yield node, (text[:operator] + rest).decode(errors="replace"), why


def _one_too_many(node: ast.AST, source: str) -> Iterator[Rewrite]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return
    left = ast.get_source_segment(source, node.left)
    if left and isinstance(node.right, ast.Constant) and node.right.value == 1:
        other = "-" if isinstance(node.op, ast.Add) else "+"
        yield node, left, "it is off by one"
        yield node, f"{left} {other} 1", "it is off by one, the wrong way"


def _rounding(node: ast.AST, source: str) -> Iterator[Rewrite]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        text = ast.get_source_segment(source, node)
        yield node, f"-(-{text})", "it rounds down where it should round up"


def _and_or(node: ast.AST, source: str) -> Iterator[Rewrite]:
    text = ast.get_source_segment(source, node) if isinstance(node, ast.BoolOp) else None
    if isinstance(node, ast.BoolOp) and text:
        old, new = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        yield node, text.replace(old, new, 1), f"`{old.strip()}` stands where `{new.strip()}` is meant"


def _truth(node: ast.AST, _: str) -> Iterator[Rewrite]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value), "the answer is the wrong way round"


RULES: tuple[Callable[[ast.AST, str], Iterator[Rewrite]], ...] = (
    _range_end,
    _comparison,
    _one_too_many,
    _rounding,
    _and_or,
    _truth,
)


# The turn.


PLAN = ("Run the tests", "Read what fails", "Fix it, with permission", "Run the tests again")
COMMAND = "python -m unittest"
WINDOW = 200_000  # what a model's context would hold; this agent has none
CHARACTERS_A_TOKEN = 4


def fix(turn: PromptTurn) -> None:
    turn.plan = [{"content": entry, "status": "pending"} for entry in PLAN]
    _enter(turn, 0)
    turn.say("I will look for a failing test in this folder.")
    tests = run_tests(turn)
    if tests is None:
        turn.say("I may not run the tests here, or cannot, so I changed nothing.")
    elif not tests.count and not tests.failing:
        turn.say("I found no tests here, so there is nothing I could fix.")
    elif tests.passed:
        turn.say(f"All {tests.count} tests pass: there is nothing to fix.")
    else:
        _look_into(turn, tests)
    report_usage(turn)


def run_tests(turn: PromptTurn) -> TestRun | None:
    outcome = run_command(turn, TEST_COMMAND, COMMAND, ask=_asks(turn))
    return None if outcome is None else TestRun.of(outcome)


def _asks(turn: PromptTurn) -> bool:
    # In no mode does an operator's prompt run the tests of a folder: whoever may approve says so each time.
    return turn.session.record.mode != "bypass" or not turn.executes


def _look_into(turn: PromptTurn, tests: TestRun) -> None:
    name = tests.failing[0][0] if tests.failing else "the tests"
    _enter(turn, 1)
    title(turn, {"TITLE": f"Fix {name}"})
    turn.think(f"{name} fails. I will read it, and the code that it calls.")
    reads = turn.executes or turn.offers("fs", "readTextFile")
    for file in test_files(turn.session.cwd, tests.failing) if reads else ():
        read_file(turn, file)
    tried = _try(turn, _search(turn, tests))
    if tried is None:
        turn.say(f"{name} fails, and I may not try changes here, or cannot. I changed nothing.")
        return
    found = tried.fix
    if found is None:
        turn.say(f"{name} fails, and no one-line change that I know makes it pass. I changed nothing.")
        return
    if reads:
        read_file(turn, found.path)
    turn.think(f"In {found.path}, line {found.line}, {found.why}.")
    _enter(turn, 2)
    _propose(turn, found)


def _search(turn: PromptTurn, tests: TestRun) -> list[Fix]:
    """Find changes that might help, by the text of the files."""
    folder = turn.session.cwd
    raw = {"path": str(folder)}
    with ReportedCall(turn, "search", "Search for one-line changes", raw_input=raw, path=folder) as call:
        call.begin()
        if not small_enough(folder):
            raise StepFailedError("the folder has too many files to copy")
        found = candidates(folder, tests.failing)
        call.complete(text_content(f"changes that may help: {len(found)}"))
        return found
    return []


def _try(turn: PromptTurn, changes: list[Fix]) -> Search | None:
    """Each with the tests. That runs them, and what they call, though the folder stays as it is."""
    if not changes:
        return Search(None, 0)
    raw = {"command": COMMAND, "changes": min(len(changes), MAX_TRIES)}
    with ReportedCall(turn, "execute", f"Run {COMMAND} on changes in a scratch copy", raw_input=raw) as call:
        if _asks(turn):
            ask_permission(call)
        call.begin()
        result = search(turn.session.cwd, changes, turn.cancelled)
        if turn.cancelled.is_set():
            raise TurnCancelledError
        verdict = "one makes the tests pass" if result.fix else "none makes the tests pass"
        call.complete(text_content(f"changes tried: {result.tries}; {verdict}"))
        return result
    return None


def _propose(turn: PromptTurn, found: Fix) -> None:
    path = turn.locate(found.path)
    text = path.read_text()
    change = FileEdit(path, text, apply(found, text))
    raw = {"path": found.path, "old": found.old, "new": found.new}
    if turn.session.record.mode == "plan":
        turn.say(f"In {found.path} I would change `{found.old}` to `{found.new}`: {found.why}. I did not.")
    elif not apply_change(turn, change, f"Edit {found.path}", raw, ask=_asks(turn)):
        turn.say("The edit was not allowed, so I stop here. I changed nothing.")
    else:
        _enter(turn, 3)
        _report(turn, found, run_tests(turn))


def _report(turn: PromptTurn, found: Fix, tests: TestRun | None) -> None:
    if tests is None:
        turn.say(f"I changed {found.path}, line {found.line}, and may not run the tests again, or cannot.")
        return
    if not tests.passed:
        turn.say(f"I changed {found.path}, line {found.line}, but the tests still do not pass.")
        return
    _enter(turn, len(PLAN))
    change = f"{found.path}, line {found.line}: `{found.old}` is now `{found.new}`"
    if turn.session.record.model == "rehearsal-terse":
        turn.say(f"Fixed. {change}.")
    else:
        turn.say(f"Fixed: {found.why}. {change}. All {tests.count} tests pass.")


def _enter(turn: PromptTurn, current: int) -> None:
    """Entries before the current one are done; past the end, all of them are."""
    for number, entry in enumerate(turn.plan):
        entry["status"] = (
            "completed" if number < current else "in_progress" if number == current else "pending"
        )
    turn.show_plan()


def report_usage(turn: PromptTurn) -> None:
    used = (turn.characters + len(turn.text)) // CHARACTERS_A_TOKEN
    cost = {"amount": 0.0, "currency": "USD"}
    turn.update({"sessionUpdate": "usage_update", "used": used, "size": WINDOW, "cost": cost})
