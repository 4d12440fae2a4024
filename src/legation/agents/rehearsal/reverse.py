"""Steps that use what the client offers: its files, its terminals, its forms.

A capability that the client did not advertise is not used, unless the step is forced.
"""

import json
import re
from pathlib import Path

from legation.agents.rehearsal.connection import Json, Reply
from legation.agents.rehearsal.params import inner
from legation.agents.rehearsal.script import Args, StepSpec
from legation.agents.rehearsal.toolcall import ToolCall, diff_content, text_content
from legation.agents.rehearsal.turn import StepFailedError, Turn, TurnCancelledError, new_id

UNASKED = "calls the client even if it did not offer this, and leaves the working folder too"
FIELD = re.compile(r"\s+([A-Za-z_]\w*):(string|number|integer|boolean)\s*\Z")
OUTPUT_LIMIT = 1 << 16


def fs_read(turn: Turn, args: Args) -> None:
    name = args["PATH"]
    path = turn.session.cwd / name
    with ToolCall(turn, "read", f"Read {name}", raw_input={"path": name}, path=path) as call:
        call.begin()
        found = turn.locate(name, forced="!" in args)
        reply = call_client(turn, args, ("fs", "readTextFile"), "fs/read_text_file", {"path": str(found)})
        call.complete(text_content(str(reply.fields.get("content"))))


def fs_write(turn: Turn, args: Args) -> None:
    name, text = args["PATH"], args.get("TEXT", "")
    raw = {"path": name, "content": text}
    with ToolCall(turn, "edit", f"Write {name}", raw_input=raw, path=turn.session.cwd / name) as call:
        call.begin()
        found = turn.locate(name, forced="!" in args)
        old = _before(turn, found)
        params = {"path": str(found), "content": text}
        call_client(turn, args, ("fs", "writeTextFile"), "fs/write_text_file", params)
        call.complete(diff_content(found, old, text))


def _before(turn: Turn, path: Path) -> str | None:
    """What a file has before it is written, as far as this may be known."""
    try:
        return read_text(turn, path) if path.exists() else None
    except (OSError, StepFailedError):
        return None


def read_text(turn: Turn, path: Path, *, errors: str = "replace") -> str:
    """By the agent itself where it may act by itself, else through its client, who decides what is read."""
    if turn.executes:
        return path.read_text(errors=errors)
    reply = call_client(turn, {}, ("fs", "readTextFile"), "fs/read_text_file", {"path": str(path)})
    return str(reply.fields.get("content"))


def write_text(turn: Turn, path: Path, text: str) -> None:
    if turn.executes:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    else:
        params = {"path": str(path), "content": text}
        call_client(turn, {}, ("fs", "writeTextFile"), "fs/write_text_file", params)


def terminal(turn: Turn, args: Args) -> None:
    line = args["COMMAND"]
    with ToolCall(turn, "execute", f"Run {line}", raw_input={"command": line}) as call:
        call.begin()
        params = {
            "command": "/bin/sh",
            "args": ["-c", line],
            "cwd": str(turn.session.cwd),
            "outputByteLimit": OUTPUT_LIMIT,
        }
        created = call_client(turn, args, ("terminal",), "terminal/create", params)
        _watch(call, args, {"terminalId": created.fields.get("terminalId")})


def _watch(call: ToolCall, args: Args, terminal_id: Json) -> None:
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


def _give_up(turn: Turn, terminal_id: Json) -> None:
    """Kill and release, without waiting: the turn is over."""
    params = {"sessionId": turn.session.record.id, **terminal_id}
    turn.connection.request("terminal/kill", params)
    turn.connection.request("terminal/release", params)


def elicit(turn: Turn, args: Args) -> None:
    question, fields = _fields(args["QUESTION"])
    properties = {name: {"type": kind, "title": name} for name, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    params = {"mode": "form", "message": question, "requestedSchema": schema}
    _say_answer(turn, args, "form", params)


def elicit_url(turn: Turn, args: Args) -> None:
    elicitation = {"elicitationId": new_id("elicitation")}
    params = {"mode": "url", "message": args["QUESTION"], "url": args["URL"], **elicitation}
    if _say_answer(turn, args, "url", params):
        turn.connection.notify("elicitation/complete", elicitation)


def _say_answer(turn: Turn, args: Args, form: str, params: Json) -> bool:
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


def call_client(turn: Turn, args: Args, offer: tuple[str, ...], method: str, params: Json) -> Reply:
    if "!" not in args and not turn.offers(*offer):
        raise StepFailedError(f"cannot call {method}: the client does not offer {'.'.join(offer)}")
    reply = turn.ask_client(method, params)
    if reply.error is not None:
        raise StepFailedError(f"{method} was answered by {reply.complaint}")
    return reply


def unknown_request(turn: Turn, _: Args) -> None:
    reply = turn.ask_client("rehearsal/unknown", {})
    code = inner(reply.error, "code")
    turn.message(f"unknown request: {'accepted' if reply.error is None else f'error {code}'}")


def vendor_note(turn: Turn, args: Args) -> None:
    params = {"sessionId": turn.session.record.id, "text": args["TEXT"]}
    turn.connection.notify("_rehearsal/note", params)


def vendor_ask(turn: Turn, args: Args) -> None:
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
        "(string, number, integer, boolean).",
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
