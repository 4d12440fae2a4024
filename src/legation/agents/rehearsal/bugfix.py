"""What a plain prompt gets: find a failing test, find a one-line fix, make it, test again. It asks before it runs
anything, be it in a copy, and before it edits; it reads and searches without."""

from legation.agents.rehearsal import fixer, permission
from legation.agents.rehearsal.fixer import Fix, Search, TestRun
from legation.agents.rehearsal.talk import title
from legation.agents.rehearsal.toolcall import ToolCall, text_content
from legation.agents.rehearsal.turn import StepFailedError, Turn, TurnCancelledError
from legation.agents.rehearsal.work import Change, apply_change, read_file, run_command

PLAN = ("Run the tests", "Read what fails", "Fix it, with permission", "Run the tests again")
COMMAND = "python -m unittest"
WINDOW = 200_000  # what a model's context would hold; this agent has none
CHARACTERS_A_TOKEN = 4


def fix(turn: Turn) -> None:
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


def run_tests(turn: Turn) -> TestRun | None:
    outcome = run_command(turn, fixer.TEST_COMMAND, COMMAND, ask=_asks(turn))
    return None if outcome is None else TestRun.of(outcome)


def _asks(turn: Turn) -> bool:
    return turn.session.record.mode != "bypass"


def _look_into(turn: Turn, tests: TestRun) -> None:
    name = tests.failing[0][0] if tests.failing else "the tests"
    _enter(turn, 1)
    title(turn, {"TITLE": f"Fix {name}"})
    turn.think(f"{name} fails. I will read it, and the code that it calls.")
    for file in fixer.test_files(turn.session.cwd, tests.failing):
        read_file(turn, file)
    tried = _try(turn, _search(turn, tests))
    if tried is None:
        turn.say(f"{name} fails, and I may not try changes here, or cannot. I changed nothing.")
        return
    found = tried.fix
    if found is None:
        turn.say(f"{name} fails, and no one-line change that I know makes it pass. I changed nothing.")
        return
    read_file(turn, found.path)
    turn.think(f"In {found.path}, line {found.line}, {found.why}.")
    _enter(turn, 2)
    _propose(turn, found)


def _search(turn: Turn, tests: TestRun) -> list[Fix]:
    """What might help, by the text of the files."""
    folder = turn.session.cwd
    raw = {"path": str(folder)}
    with ToolCall(turn, "search", "Search for one-line changes", raw_input=raw, path=folder) as call:
        call.begin()
        if not fixer.small_enough(folder):
            raise StepFailedError("the folder has too many files to copy")
        found = fixer.candidates(folder, tests.failing)
        call.complete(text_content(f"changes that may help: {len(found)}"))
        return found
    return []


def _try(turn: Turn, changes: list[Fix]) -> Search | None:
    """Each with the tests. That runs them, and what they call, though the folder stays as it is."""
    if not changes:
        return Search(None, 0)
    raw = {"command": COMMAND, "changes": min(len(changes), fixer.MAX_TRIES)}
    with ToolCall(turn, "execute", f"Run {COMMAND} on changes in a scratch copy", raw_input=raw) as call:
        if _asks(turn):
            permission.ask(call)
        call.begin()
        result = fixer.search(turn.session.cwd, changes, turn.cancelled)
        if turn.cancelled.is_set():
            raise TurnCancelledError
        verdict = "one makes the tests pass" if result.fix else "none makes the tests pass"
        call.complete(text_content(f"changes tried: {result.tries}; {verdict}"))
        return result
    return None


def _propose(turn: Turn, found: Fix) -> None:
    path = turn.locate(found.path)
    text = path.read_text()
    change = Change(path, text, fixer.apply(found, text))
    raw = {"path": found.path, "old": found.old, "new": found.new}
    if turn.session.record.mode == "plan":
        turn.say(f"In {found.path} I would change `{found.old}` to `{found.new}`: {found.why}. I did not.")
    elif not apply_change(turn, change, f"Edit {found.path}", raw, ask=_asks(turn)):
        turn.say("The edit was not allowed, so I stop here. I changed nothing.")
    else:
        _enter(turn, 3)
        _report(turn, found, run_tests(turn))


def _report(turn: Turn, found: Fix, tests: TestRun | None) -> None:
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


def _enter(turn: Turn, current: int) -> None:
    """Entries before the current one are done; past the end, all of them are."""
    for number, entry in enumerate(turn.plan):
        entry["status"] = (
            "completed" if number < current else "in_progress" if number == current else "pending"
        )
    turn.show_plan()


def report_usage(turn: Turn) -> None:
    used = (turn.characters + len(turn.text)) // CHARACTERS_A_TOKEN
    cost = {"amount": 0.0, "currency": "USD"}
    turn.update({"sessionUpdate": "usage_update", "used": used, "size": WINDOW, "cost": cost})
