"""Steps that do something, each as a tool call: in the working folder, and by what the client offers: its files, its
terminals, its forms. A capability that the client did not advertise is not used, unless the step is forced.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

from legation.agents.rehearsal.protocol import ClientReply, Json, RequestId, inner
from legation.agents.rehearsal.script import Args, StepSpec
from legation.agents.rehearsal.turn import PromptTurn, StepFailedError, TurnCancelledError, new_id, text_block

Kind: TypeAlias = Literal["read", "edit", "execute", "search", "other"]


def text_content(text: str) -> Json:
    return {"type": "content", "content": text_block(text)}


def diff_content(path: Path, old: str | None, new: str) -> Json:
    return {"type": "diff", "path": str(path), "oldText": old, "newText": new}


class ReportedCall:
    """`with ToolCall(...)`: a `StepFailedError` inside is reported and ends there."""

    def __init__(
        self,
        turn: PromptTurn,
        kind: Kind,
        title: str,
        *,
        raw_input: Json,
        path: Path | None = None,
        content: Sequence[Json] = (),
    ) -> None:
        self.turn = turn
        self.kind = kind
        self.finished = False
        self.facts: dict[str, object] = {
            "toolCallId": new_id("call"),
            "title": title,
            "kind": kind,
            "status": "pending",
            "locations": [] if path is None else [{"path": str(path)}],
            "rawInput": raw_input,
            "content": list(content),
        }

    def __enter__(self) -> "ReportedCall":
        self.turn.update({"sessionUpdate": "tool_call", **self.facts})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, TurnCancelledError):
            self.fail("cancelled")
        elif isinstance(error, (StepFailedError, OSError)):
            self.fail(str(error))
            return True
        elif error is None and not self.finished:
            self.complete()
        return False

    def begin(self) -> None:
        self._update({"status": "in_progress"})

    def show(self, *content: Json) -> None:
        self._update({"content": list(content)})

    def complete(self, *content: Json, raw_output: Json | None = None) -> None:
        self._finish("completed", content, raw_output)

    def fail(self, reason: str, *, raw_output: Json | None = None) -> None:
        self._finish("failed", [text_content(reason)], raw_output or {"error": reason})

    def _finish(self, status: str, content: Sequence[Json], raw_output: Json | None) -> None:
        self.finished = True
        facts: dict[str, object] = {"status": status}
        if content:
            facts["content"] = list(content)
        if raw_output is not None:
            facts["rawOutput"] = raw_output
        self._update(facts)

    def _update(self, facts: Json) -> None:
        call_id = self.facts["toolCallId"]
        self.turn.update({"sessionUpdate": "tool_call_update", "toolCallId": call_id, **facts})


# The client is asked before something is done, with all four kinds of option.


ALLOWS: Mapping[str, bool] = {
    "allow-once": True,
    "allow-always": True,
    "reject-once": False,
    "reject-always": False,
}
NAMES: Mapping[str, str] = {
    "allow-once": "Allow",
    "allow-always": "Allow for this session",
    "reject-once": "Reject",
    "reject-always": "Reject for this session",
}
OPTIONS: list[Json] = [
    {"optionId": option, "name": name, "kind": option.replace("-", "_")} for option, name in NAMES.items()
]


def ask_permission(call: ReportedCall) -> str:
    """The option that allowed it; a refusal is a `StepFailedError`, a cancel ends the turn."""
    remembered = call.turn.session.remembered
    if call.kind in remembered:
        return _obey("allow-always" if remembered[call.kind] else "reject-always")
    reply = call.turn.ask_client("session/request_permission", request(call))
    if reply.error is not None:
        raise StepFailedError(f"permission not given: the client answered {reply.complaint}")
    if inner(reply.fields, "outcome", "outcome") == "cancelled":
        call.turn.cancel()
        raise TurnCancelledError
    option = str(inner(reply.fields, "outcome", "optionId"))
    if option.endswith("-always") and option in ALLOWS:
        remembered[call.kind] = ALLOWS[option]
    return _obey(option)


def ask_permission_and_withdraw(call: ReportedCall) -> RequestId:
    """Asks, and takes the question back at once."""
    params = {"sessionId": call.turn.session.record.id, **request(call)}
    pending = call.turn.connection.request("session/request_permission", params)
    call.turn.withdraw(pending)
    return pending.id


def request(call: ReportedCall) -> Json:
    return {"toolCall": call.facts, "options": OPTIONS}


def _obey(option: str) -> str:
    if option not in ALLOWS:
        raise StepFailedError("permission not given: the client chose an option that was not offered")
    if not ALLOWS[option]:
        raise StepFailedError(f"permission denied ({option})")
    return option


# A command in the working folder, in a process group that a cancel can end.


COMMAND_LIMIT = 600.0  # the command's time
POLL = 0.1  # how soon a cancel is noticed
OUTPUT_LIMIT = 1 << 16  # characters; the end of longer output is what matters


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    code: int
    output: str
    cancelled: bool = False


def run_process(
    argv: Sequence[str], cwd: Path, cancelled: threading.Event, limit: float = COMMAND_LIMIT
) -> CommandOutcome:
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    end = time.monotonic() + limit
    while True:
        try:
            output, _ = process.communicate(timeout=POLL)
            return CommandOutcome(process.returncode, _tail(output))
        except subprocess.TimeoutExpired:
            if cancelled.is_set() or time.monotonic() > end:
                return CommandOutcome(-signal.SIGKILL, _kill(process), cancelled=cancelled.is_set())


def _kill(process: "subprocess.Popen[bytes]") -> str:
    os.killpg(process.pid, signal.SIGKILL)
    try:
        output, _ = process.communicate(timeout=POLL)
    except subprocess.TimeoutExpired:  # a daemon of the command holds the pipe
        return ""
    return _tail(output)


def _tail(output: bytes) -> str:
    return output.decode(errors="replace")[-OUTPUT_LIMIT:]


# By what the client offers.


UNASKED = "calls the client even if it did not offer this, and leaves the working folder too"
FIELD = re.compile(r"\s+([A-Za-z_]\w*):(string|number|integer|boolean|[A-Za-z][\w.-]*(?:\|[\w.-]+)+)\s*\Z")
TERMINAL_LIMIT = 1 << 16


def fs_read(turn: PromptTurn, args: Args) -> None:
    name = args["PATH"]
    path = turn.session.cwd / name
    with ReportedCall(turn, "read", f"Read {name}", raw_input={"path": name}, path=path) as call:
        call.begin()
        found = turn.locate(name, forced="!" in args)
        reply = call_client(turn, args, ("fs", "readTextFile"), "fs/read_text_file", {"path": str(found)})
        call.complete(text_content(str(reply.fields.get("content"))))


def fs_write(turn: PromptTurn, args: Args) -> None:
    name, text = args["PATH"], args.get("TEXT", "")
    raw = {"path": name, "content": text}
    with ReportedCall(turn, "edit", f"Write {name}", raw_input=raw, path=turn.session.cwd / name) as call:
        call.begin()
        found = turn.locate(name, forced="!" in args)
        old = _before(turn, found)
        params = {"path": str(found), "content": text}
        call_client(turn, args, ("fs", "writeTextFile"), "fs/write_text_file", params)
        call.complete(diff_content(found, old, text))


def _before(turn: PromptTurn, path: Path) -> str | None:
    """The text of a file before it is written, as far as this may be known."""
    try:
        return read_text(turn, path) if path.exists() else None
    except (OSError, StepFailedError):
        return None


def read_text(turn: PromptTurn, path: Path, *, errors: str = "replace") -> str:
    """Read a file: by the agent itself where it may act by itself, else through its client, who decides what is read."""
    if turn.executes:
        return path.read_text(errors=errors)
    reply = call_client(turn, {}, ("fs", "readTextFile"), "fs/read_text_file", {"path": str(path)})
    return str(reply.fields.get("content"))


def write_text(turn: PromptTurn, path: Path, text: str, *, allowed: bool = False) -> None:
    """Write a file as it is read; where the client has none to offer, as in a run, what somebody `allowed` by the agent itself."""
    if turn.executes or (allowed and not turn.offers("fs", "writeTextFile")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    else:
        params = {"path": str(path), "content": text}
        call_client(turn, {}, ("fs", "writeTextFile"), "fs/write_text_file", params)


def terminal(turn: PromptTurn, args: Args) -> None:
    line = args["COMMAND"]
    with ReportedCall(turn, "execute", f"Run {line}", raw_input={"command": line}) as call:
        call.begin()
        params = {
            "command": "/bin/sh",
            "args": ["-c", line],
            "cwd": str(turn.session.cwd),
            "outputByteLimit": TERMINAL_LIMIT,
        }
        created = call_client(turn, args, ("terminal",), "terminal/create", params)
        _watch(call, args, {"terminalId": created.fields.get("terminalId")})


def _watch(call: ReportedCall, args: Args, terminal_id: Json) -> None:
    turn, offer = call.turn, ("terminal",)
    call.show({"type": "terminal", **terminal_id})
    try:
        exited = call_client(turn, args, offer, "terminal/wait_for_exit", terminal_id)
        output = call_client(turn, args, offer, "terminal/output", terminal_id)
    except TurnCancelledError:
        _give_up(turn, terminal_id)
        raise
    call_client(turn, args, offer, "terminal/release", terminal_id)
    call.complete(
        {"type": "terminal", **terminal_id},
        raw_output={
            "exitCode": exited.fields.get("exitCode"),
            "signal": exited.fields.get("signal"),
            "output": output.fields.get("output"),
        },
    )


def _give_up(turn: PromptTurn, terminal_id: Json) -> None:
    """Kill and release, without waiting: the turn is over."""
    params = {"sessionId": turn.session.record.id, **terminal_id}
    turn.connection.request("terminal/kill", params)
    turn.connection.request("terminal/release", params)


def elicit(turn: PromptTurn, args: Args) -> None:
    question, fields = _fields(args["QUESTION"])
    properties = {name: {"title": name, **_schema(kind)} for name, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    params = {"mode": "form", "message": question, "requestedSchema": schema}
    _say_answer(turn, args, "form", params)


def _schema(kind: str) -> Json:
    return {"type": "string", "enum": kind.split("|")} if "|" in kind else {"type": kind}


def elicit_url(turn: PromptTurn, args: Args) -> None:
    elicitation = {"elicitationId": new_id("elicitation")}
    params = {"mode": "url", "message": args["QUESTION"], "url": args["URL"], **elicitation}
    if _say_answer(turn, args, "url", params):
        turn.connection.notify("elicitation/complete", elicitation)


def _say_answer(turn: PromptTurn, args: Args, form: str, params: Json) -> bool:
    try:
        reply = call_client(turn, args, ("elicitation", form), "elicitation/create", params)
    except StepFailedError as error:
        turn.message(f"no answer: {error}")
        return False
    content = reply.fields.get("content")
    answer = f" {json.dumps(content, sort_keys=True)}" if content is not None else ""
    turn.message(f"answer: {reply.fields.get('action')}{answer}")
    return reply.fields.get("action") == "accept"


def _fields(question: str) -> tuple[str, dict[str, str]]:
    """The question, and the `name:type` words at its end; one text field if there are none."""
    fields: dict[str, str] = {}
    while found := FIELD.search(question):
        fields = {found[1]: found[2], **fields}
        question = question[: found.start()]
    return question, fields or {"answer": "string"}


def call_client(
    turn: PromptTurn, args: Args, offer: tuple[str, ...], method: str, params: Json
) -> ClientReply:
    if "!" not in args and not turn.offers(*offer):
        raise StepFailedError(f"cannot call {method}: the client does not offer {'.'.join(offer)}")
    reply = turn.ask_client(method, params)
    if reply.error is not None:
        raise StepFailedError(f"{method} was answered by {reply.complaint}")
    return reply


def unknown_request(turn: PromptTurn, _: Args) -> None:
    reply = turn.ask_client("rehearsal/unknown", {})
    code = inner(reply.error, "code")
    turn.message(f"unknown request: {'accepted' if reply.error is None else f'error {code}'}")


def vendor_note(turn: PromptTurn, args: Args) -> None:
    params = {"sessionId": turn.session.record.id, "text": args["TEXT"]}
    turn.connection.notify("_rehearsal/note", params)


def vendor_ask(turn: PromptTurn, args: Args) -> None:
    reply = turn.ask_client("_rehearsal/ask", {"text": args["TEXT"]})
    said = f"error {json.dumps(reply.error)}" if reply.error is not None else json.dumps(reply.result)
    turn.message(f"answered: {said}")


REVERSE = (
    StepSpec("fs-read", "PATH", "Reads a file through the client.", fs_read, forced=UNASKED),
    StepSpec("fs-write", "PATH [TEXT]", "Writes a file through the client.", fs_write, forced=UNASKED),
    StepSpec(
        "terminal",
        "COMMAND",
        "Runs a command in a terminal of the client: create, wait, output, release.",
        terminal,
        forced="calls the client even if it did not offer terminals",
        executes="always",
    ),
    StepSpec(
        "elicit",
        "QUESTION",
        "Asks by a form and says the answer; words `name:type` at the end are its fields "
        "(string, number, integer, boolean, or choices: `a|b|c`).",
        elicit,
        forced="asks even if the client did not offer forms",
    ),
    StepSpec(
        "elicit-url",
        "URL QUESTION",
        "Sends the user to a page and says the answer.",
        elicit_url,
        forced="asks even if the client did not offer it",
    ),
    StepSpec(
        "unknown-request", "", "Sends a request of no known method and says the answer.", unknown_request
    ),
    StepSpec(
        "vendor-note", "TEXT", "Sends TEXT in a notification of its own, `_rehearsal/note`.", vendor_note
    ),
    StepSpec(
        "vendor-ask",
        "TEXT",
        "Sends TEXT in a request of its own, `_rehearsal/ask`; says the answer.",
        vendor_ask,
    ),
)


# In the working folder, each as a tool call with its outcome.


ANYWHERE = "leaves the working folder too (a hostile agent)"


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file's text before and after; before is None for a new file."""

    path: Path
    old: str | None
    new: str


def read(turn: PromptTurn, args: Args) -> None:
    read_file(turn, args["PATH"], forced="!" in args)


def read_file(turn: PromptTurn, name: str, *, forced: bool = False) -> None:
    path = turn.session.cwd / name
    with ReportedCall(turn, "read", f"Read {name}", raw_input={"path": name}, path=path) as call:
        call.begin()
        text = read_text(turn, turn.locate(name, forced=forced))
        call.complete(text_content(text))


def edit(turn: PromptTurn, args: Args) -> None:
    name = args["PATH"]
    raw = {"path": name, "old": args["OLD"], "new": args["NEW"]}
    try:
        path = turn.locate(name, forced="!" in args)
        old = read_text(turn, path, errors="strict")
        if args["OLD"] not in old:
            raise StepFailedError(f"cannot edit {name}: the text to replace is not there")
    except (StepFailedError, OSError) as error:
        with ReportedCall(turn, "edit", f"Edit {name}", raw_input=raw, path=turn.session.cwd / name) as call:
            call.fail(str(error))
    else:
        change = FileEdit(path, old, old.replace(args["OLD"], args["NEW"], 1))
        apply_change(turn, change, f"Edit {name}", raw, ask="ask" in args)


def write(turn: PromptTurn, args: Args) -> None:
    name, text = args["PATH"], args.get("TEXT", "")
    raw = {"path": name, "content": text}
    try:
        path = turn.locate(name, forced="!" in args)
        old = read_text(turn, path) if path.exists() else None
    except (StepFailedError, OSError) as error:
        with ReportedCall(turn, "edit", f"Write {name}", raw_input=raw, path=turn.session.cwd / name) as call:
            call.fail(str(error))
    else:
        apply_change(turn, FileEdit(path, old, text), f"Write {name}", raw, ask="ask" in args)


def apply_change(turn: PromptTurn, change: FileEdit, title: str, raw: dict[str, str], *, ask: bool) -> bool:
    """Change a file, and tell whether it was. What is asked for is the very diff that is then made."""
    diff = diff_content(change.path, change.old, change.new)
    with ReportedCall(turn, "edit", title, raw_input=raw, path=change.path, content=[diff]) as call:
        if ask:
            ask_permission(call)
        call.begin()
        write_text(turn, change.path, change.new, allowed=ask)
        call.complete(diff)
        return True
    return False


def run(turn: PromptTurn, args: Args) -> None:
    run_command(turn, ("/bin/sh", "-c", args["COMMAND"]), args["COMMAND"], ask="ask" in args)


def run_command(turn: PromptTurn, argv: tuple[str, ...], title: str, *, ask: bool) -> CommandOutcome | None:
    """Run a command; None where it was not allowed, or could not be run."""
    raw = {"command": title}
    with ReportedCall(turn, "execute", f"Run {title}", raw_input=raw) as call:
        if ask:
            ask_permission(call)
        call.begin()
        outcome = run_process(argv, turn.session.cwd, turn.cancelled)
        if outcome.cancelled:
            raise TurnCancelledError
        status = {"exitCode": outcome.code}
        if outcome.code == 0:
            call.complete(text_content(outcome.output), raw_output=status)
        else:
            call.fail(outcome.output or f"exit code {outcome.code}", raw_output=status)
        return outcome
    return None


def ask(turn: PromptTurn, args: Args) -> None:
    with ReportedCall(turn, "other", args["TITLE"], raw_input={"title": args["TITLE"]}) as call:
        option = ask_permission(call)
        call.begin()
        call.complete(text_content(f"permission given ({option})"), raw_output={"option": option})


def ask_withdraw(turn: PromptTurn, args: Args) -> None:
    with ReportedCall(turn, "other", args["TITLE"], raw_input={"title": args["TITLE"]}) as call:
        number = ask_permission_and_withdraw(call)
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
    StepSpec("ask edit", "PATH OLD => NEW", "Asks with the diff; edits only if allowed.", edit),
    StepSpec("ask write", "PATH [TEXT]", "Asks with the diff; writes only if allowed.", write),
    StepSpec("ask run", "COMMAND", "Asks; runs the command only if allowed.", run, executes="always"),
    StepSpec(
        "ask-withdraw", "TITLE", "Asks, and takes the question back by `$/cancel_request`.", ask_withdraw
    ),
)
