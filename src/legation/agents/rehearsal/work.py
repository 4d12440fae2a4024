"""Steps that do something in the working folder, each as a tool call with its outcome."""

from dataclasses import dataclass
from pathlib import Path

from legation.agents.rehearsal import command, permission
from legation.agents.rehearsal.reverse import read_text, write_text
from legation.agents.rehearsal.script import Args, StepSpec
from legation.agents.rehearsal.toolcall import ToolCall, diff_content, text_content
from legation.agents.rehearsal.turn import StepFailedError, Turn, TurnCancelledError

ANYWHERE = "leaves the working folder too (a hostile agent)"


@dataclass(frozen=True, slots=True)
class Change:
    """A file's text before and after; before is None for a new file."""

    path: Path
    old: str | None
    new: str


def read(turn: Turn, args: Args) -> None:
    read_file(turn, args["PATH"], forced="!" in args)


def read_file(turn: Turn, name: str, *, forced: bool = False) -> None:
    path = turn.session.cwd / name
    with ToolCall(turn, "read", f"Read {name}", raw_input={"path": name}, path=path) as call:
        call.begin()
        text = read_text(turn, turn.locate(name, forced=forced))
        call.complete(text_content(text))


def edit(turn: Turn, args: Args) -> None:
    replace_text(turn, args, ask=False)


def ask_edit(turn: Turn, args: Args) -> None:
    replace_text(turn, args, ask=True)


def replace_text(turn: Turn, args: Args, *, ask: bool) -> bool:
    name = args["PATH"]
    raw = {"path": name, "old": args["OLD"], "new": args["NEW"]}
    try:
        path = turn.locate(name, forced="!" in args)
        old = read_text(turn, path, errors="strict")
        if args["OLD"] not in old:
            raise StepFailedError(f"cannot edit {name}: the text to replace is not there")
    except (StepFailedError, OSError) as error:
        with ToolCall(turn, "edit", f"Edit {name}", raw_input=raw, path=turn.session.cwd / name) as call:
            call.fail(str(error))
        return False
    change = Change(path, old, old.replace(args["OLD"], args["NEW"], 1))
    return apply_change(turn, change, f"Edit {name}", raw, ask=ask)


def write(turn: Turn, args: Args) -> None:
    write_file(turn, args, ask=False)


def ask_write(turn: Turn, args: Args) -> None:
    write_file(turn, args, ask=True)


def write_file(turn: Turn, args: Args, *, ask: bool) -> None:
    name, text = args["PATH"], args.get("TEXT", "")
    raw = {"path": name, "content": text}
    try:
        path = turn.locate(name, forced="!" in args)
        old = read_text(turn, path) if path.exists() else None
    except (StepFailedError, OSError) as error:
        with ToolCall(turn, "edit", f"Write {name}", raw_input=raw, path=turn.session.cwd / name) as call:
            call.fail(str(error))
    else:
        apply_change(turn, Change(path, old, text), f"Write {name}", raw, ask=ask)


def apply_change(turn: Turn, change: Change, title: str, raw: dict[str, str], *, ask: bool) -> bool:
    """Whether the file was changed. What is asked for is the very diff that is then made."""
    diff = diff_content(change.path, change.old, change.new)
    with ToolCall(turn, "edit", title, raw_input=raw, path=change.path, content=[diff]) as call:
        if ask:
            permission.ask(call)
        call.begin()
        write_text(turn, change.path, change.new)
        call.complete(diff)
        return True
    return False


def run(turn: Turn, args: Args) -> None:
    run_command(turn, command.shell(args["COMMAND"]), args["COMMAND"], ask=False)


def ask_run(turn: Turn, args: Args) -> None:
    run_command(turn, command.shell(args["COMMAND"]), args["COMMAND"], ask=True)


def run_command(turn: Turn, argv: tuple[str, ...], title: str, *, ask: bool) -> command.Outcome | None:
    """None where it was not allowed, or could not be run."""
    raw = {"command": title}
    with ToolCall(turn, "execute", f"Run {title}", raw_input=raw) as call:
        if ask:
            permission.ask(call)
        call.begin()
        outcome = command.run(argv, turn.session.cwd, turn.cancelled)
        if outcome.cancelled:
            raise TurnCancelledError
        status = {"exitCode": outcome.code}
        if outcome.code == 0:
            call.complete(text_content(outcome.output), raw_output=status)
        else:
            call.fail(outcome.output or f"exit code {outcome.code}", raw_output=status)
        return outcome
    return None


def ask(turn: Turn, args: Args) -> None:
    with ToolCall(turn, "other", args["TITLE"], raw_input={"title": args["TITLE"]}) as call:
        option = permission.ask(call)
        call.begin()
        call.complete(text_content(f"permission given ({option})"), raw_output={"option": option})


def ask_withdraw(turn: Turn, args: Args) -> None:
    with ToolCall(turn, "other", args["TITLE"], raw_input={"title": args["TITLE"]}) as call:
        number = permission.ask_and_withdraw(call)
        call.fail(f"question {number} withdrawn")


WORK = (
    StepSpec("read", "PATH", "Reads a file.", read, forced=ANYWHERE, executes="forced"),
    StepSpec(
        "edit", "PATH OLD => NEW", "Replaces OLD by NEW, once.", edit, forced=ANYWHERE, executes="forced"
    ),
    StepSpec(
        "write", "PATH [TEXT]", "Writes a file with exactly TEXT.", write, forced=ANYWHERE, executes="forced"
    ),
    StepSpec("run", "COMMAND", "Runs a shell command.", run, executes="always"),
    StepSpec("ask", "TITLE", "Asks permission for something of that title, with four options.", ask),
    StepSpec("ask edit", "PATH OLD => NEW", "Asks with the diff; edits only if allowed.", ask_edit),
    StepSpec("ask write", "PATH [TEXT]", "Asks with the diff; writes only if allowed.", ask_write),
    StepSpec("ask run", "COMMAND", "Asks; runs the command only if allowed.", ask_run, executes="always"),
    StepSpec(
        "ask-withdraw", "TITLE", "Asks, and takes the question back by `$/cancel_request`.", ask_withdraw
    ),
)
