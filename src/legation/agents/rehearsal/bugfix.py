"""What a plain prompt gets: find a failing test, find a one-line fix, ask, make it, test again."""

from legation.agents.rehearsal import fixer
from legation.agents.rehearsal.fixer import Fix, TestRun
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
        turn.say("I could not run the tests here, so I changed nothing.")
    elif not tests.count and not tests.failing:
        turn.say("I found no tests here, so there is nothing I could fix.")
    elif tests.passed:
        turn.say(f"All {tests.count} tests pass: there is nothing to fix.")
    else:
        _look_into(turn, tests)
    report_usage(turn)


def run_tests(turn: Turn) -> TestRun | None:
    # It has no model: it thinks by trying the tests, and asks about what changes the folder. A script's `run` is
    # an execution like any agent's.
    outcome = run_command(turn, fixer.TEST_COMMAND, COMMAND, kind="think")
    return None if outcome is None else TestRun.of(outcome)


def _look_into(turn: Turn, tests: TestRun) -> None:
    name = tests.failing[0][0] if tests.failing else "the tests"
    _enter(turn, 1)
    title(turn, {"TITLE": f"Fix {name}"})
    turn.think(f"{name} fails. I will read it, and the code that it calls.")
    for file in fixer.test_files(turn.session.cwd, tests.failing):
        read_file(turn, file)
    found = _search(turn, tests)
    if found is None:
        turn.say(f"{name} fails, and no one-line change that I know makes it pass. I changed nothing.")
        return
    read_file(turn, found.path)
    turn.think(f"In {found.path}, line {found.line}, {found.why}.")
    _enter(turn, 2)
    _propose(turn, found)


def _search(turn: Turn, tests: TestRun) -> Fix | None:
    folder = turn.session.cwd
    with ToolCall(turn, "think", "Try one-line changes in a scratch copy", raw_input={}) as call:
        call.begin()
        if not fixer.small_enough(folder):
            raise StepFailedError("the folder has too many files to copy")
        result = fixer.search(folder, tests.failing, turn.cancelled)
        if turn.cancelled.is_set():
            raise TurnCancelledError
        verdict = "one makes the tests pass" if result.fix else "none makes the tests pass"
        call.complete(text_content(f"changes tried: {result.tries}; {verdict}"))
        return result.fix
    return None


def _propose(turn: Turn, found: Fix) -> None:
    path = turn.locate(found.path)
    text = path.read_text()
    change = Change(path, text, fixer.apply(found, text))
    raw = {"path": found.path, "old": found.old, "new": found.new}
    ask = turn.session.record.mode != "bypass"
    if turn.session.record.mode == "plan":
        turn.say(f"In {found.path} I would change `{found.old}` to `{found.new}`: {found.why}. I did not.")
    elif not apply_change(turn, change, f"Edit {found.path}", raw, ask=ask):
        turn.say("The edit was not allowed, so I stop here. I changed nothing.")
    else:
        _enter(turn, 3)
        _report(turn, found, run_tests(turn))


def _report(turn: Turn, found: Fix, tests: TestRun | None) -> None:
    if tests is None or not tests.passed:
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
