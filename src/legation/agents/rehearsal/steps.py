"""Steps that only say something, steps that misbehave, and the table of every step there is."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from legation.agents.rehearsal.protocol import Json, MethodError, encode
from legation.agents.rehearsal.script import Args, StepSpec
from legation.agents.rehearsal.turn import (
    MODELS,
    MODES,
    PromptTurn,
    TurnStoppedError,
    chunk,
    new_id,
    text_block,
    timestamp,
)
from legation.agents.rehearsal.work import REVERSE, WORK

# Saying: every kind of session update that ACP v1 has.

STOP_REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
SEVERITIES = ("info", "warning", "error")
ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CONTENTS: dict[str, dict[str, object]] = {
    "image": {"type": "image", "data": ONE_PIXEL, "mimeType": "image/png"},
    "audio": {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
    "resource_link": {"type": "resource_link", "name": "README.md", "uri": "file:///README.md"},
    "resource": {"type": "resource", "resource": {"uri": "file:///note.txt", "text": "a note"}},
}


def say(turn: PromptTurn, args: Args) -> None:
    turn.say(args["TEXT"])


def think(turn: PromptTurn, args: Args) -> None:
    turn.think(args["TEXT"])


def user(turn: PromptTurn, args: Args) -> None:
    turn.update(chunk("user_message_chunk", args["TEXT"]))


def echo(turn: PromptTurn, _: Args) -> None:
    turn.message(turn.text)


def recall(turn: PromptTurn, _: Args) -> None:
    turn.message(f"prompts before this one: {turn.session.record.prompts - 1}")


def content(turn: PromptTurn, args: Args) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": CONTENTS[args["KIND"]]}
    turn.update({**update, "messageId": new_id("msg")})


def plan(turn: PromptTurn, args: Args) -> None:
    entries = [entry.strip() for entry in args["ITEMS"].split(";")]
    turn.plan = [{"content": entry, "status": "pending"} for entry in entries if entry]
    turn.show_plan()


def plan_done(turn: PromptTurn, args: Args) -> None:
    for number, entry in enumerate(turn.plan, 1):
        if number == int(args["N"]):
            entry["status"] = "completed"
    turn.show_plan()


def named_plan(turn: PromptTurn, args: Args) -> None:
    """Show a plan by name. Not stable yet in ACP: a client that knows it takes it as its own plan."""
    entries = [
        {"content": entry.strip(), "priority": "medium", "status": "pending"}
        for entry in args["ITEMS"].split(";")
        if entry.strip()
    ]
    plan = {"type": "items", "planId": args["NAME"], "entries": entries}
    turn.update({"sessionUpdate": "plan_update", "plan": plan})


def plan_removed(turn: PromptTurn, args: Args) -> None:
    turn.update({"sessionUpdate": "plan_removed", "planId": args["NAME"]})


def usage(turn: PromptTurn, args: Args) -> None:
    update = {"sessionUpdate": "usage_update", "used": int(args["USED"]), "size": int(args["SIZE"])}
    cost = {"cost": {"amount": float(args["COST"]), "currency": "USD"}} if "COST" in args else {}
    turn.update({**update, **cost})


def mode(turn: PromptTurn, args: Args) -> None:
    turn.session.record.mode = args["ID"]
    turn.session.save()
    turn.update({"sessionUpdate": "current_mode_update", "currentModeId": args["ID"]})


def model(turn: PromptTurn, args: Args) -> None:
    turn.session.record.model = args["ID"]
    turn.session.save()
    boolean = turn.offers("session", "configOptions", "boolean")
    options = turn.session.record.options(boolean=boolean)
    turn.update({"sessionUpdate": "config_option_update", "configOptions": options})


def commands(turn: PromptTurn, args: Args) -> None:
    names = [name.strip() for name in args["NAMES"].split(",")]
    available = [{"name": name, "description": f"Rehearses {name}"} for name in names if name]
    turn.update({"sessionUpdate": "available_commands_update", "availableCommands": available})


def title(turn: PromptTurn, args: Args) -> None:
    turn.session.record.title = args["TITLE"]
    turn.session.save()
    update = {"sessionUpdate": "session_info_update", "title": args["TITLE"]}
    turn.update({**update, "updatedAt": timestamp(turn.session.record.updated_ns)})


def notice(turn: PromptTurn, args: Args) -> None:
    if args.get("!") or turn.offers("session", "notices"):
        update = {"sessionUpdate": "notice", "severity": args["SEVERITY"], "title": args["TITLE"]}
        turn.update(update, keep=False)  # live matters are no history
    else:
        turn.say(args["TITLE"])


def compact(turn: PromptTurn, args: Args) -> None:
    if not (args.get("!") or turn.offers("session", "compaction")):
        return turn.say(args["TEXT"])
    compaction = {"compactionId": new_id("compaction")}
    update = {"sessionUpdate": "compaction_update", **compaction}
    block = text_block(args["TEXT"])
    turn.update({**update, "status": "in_progress"})
    turn.update({"sessionUpdate": "compaction_summary_chunk", **compaction, "content": block})
    return turn.update({**update, "status": "completed", "summary": [block]})


def refuse(turn: PromptTurn, args: Args) -> None:
    if "TEXT" in args:
        turn.say(args["TEXT"])
    raise TurnStoppedError("refusal")


def stop(_: PromptTurn, args: Args) -> None:
    raise TurnStoppedError(args["REASON"])


def error(_: PromptTurn, args: Args) -> None:
    raise MethodError(int(args["CODE"]), args["MESSAGE"])


def limit(turn: PromptTurn, args: Args) -> None:
    if turn.session.record.prompts <= int(args["TIMES"]):
        data = {"errorKind": "rate_limit", "status": 429, "retryAfter": float(args["SECONDS"])}
        raise MethodError(-32603, "the usage limit of the account is reached", data)


TALK = (
    StepSpec("say", "TEXT", "Streams TEXT as a message of the agent.", say),
    StepSpec("think", "TEXT", "Streams TEXT as a thought.", think),
    StepSpec("user", "TEXT", "Sends TEXT as if it were a message of the user.", user),
    StepSpec("echo", "", "Says the text of the prompt, script and all.", echo),
    StepSpec("recall", "", "Says how many prompts this session had before.", recall),
    StepSpec(
        "content", "KIND", "A message with content that is no text.", content, {"KIND": tuple(CONTENTS)}
    ),
    StepSpec("plan", "ITEMS", "Shows a plan: entries with `;` between them.", plan),
    StepSpec("plan-done", "N", "Marks the Nth entry of the plan as completed.", plan_done),
    StepSpec("named-plan", "NAME ITEMS", "Shows a plan that has a name beside the others.", named_plan),
    StepSpec("plan-removed", "NAME", "Says that the plan of that name is no longer followed.", plan_removed),
    StepSpec("usage", "USED SIZE [COST]", "Reports tokens used, the window's size, dollars.", usage),
    StepSpec("mode", "ID", "Changes the mode and says so.", mode, {"ID": tuple(MODES)}),
    StepSpec("model", "ID", "Changes the model option and says so.", model, {"ID": tuple(MODELS)}),
    StepSpec("commands", "NAMES", "Offers slash commands: names with `,` between them.", commands),
    StepSpec("title", "TITLE", "Names the session.", title),
    StepSpec(
        "notice",
        "SEVERITY TITLE",
        "A notice to the user; a message where the client takes no notices.",
        notice,
        {"SEVERITY": SEVERITIES},
        forced="sends it all the same, with any severity",
    ),
    StepSpec(
        "compact",
        "TEXT",
        "Compacts its context to TEXT; a message where the client takes no compaction.",
        compact,
        forced="sends it all the same",
    ),
    StepSpec("refuse", "[TEXT]", "Ends the turn with stop reason `refusal`.", refuse),
    StepSpec(
        "stop",
        "REASON",
        "Ends the turn with that stop reason.",
        stop,
        {"REASON": STOP_REASONS},
        forced="takes any word for a reason",
    ),
    StepSpec("error", "CODE MESSAGE", "Answers the prompt with a JSON-RPC error.", error),
    StepSpec(
        "limit",
        "SECONDS TIMES",
        "Answers the first TIMES prompts of the session as a model's usage limit does.",
        limit,
    ),
)


# Misbehaving: nothing of it happens unless a script says so.

FLOOD_SIZE = 16
DEPTH = 20_000
STDERR_LINE = b"the rehearsal agent has something to say on its stderr\n"
DEADLY = ("KILL", "TERM", "INT", "HUP", "QUIT", "ABRT", "SEGV", "STOP")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# A child that stays, a grandchild in a session of its own, and a daemon that was forked twice.
# They outlive the agent, and end by themselves so that a failed test leaves no one for long.
TREE = """
import json, os, signal, sys, time
out = os.dup(1)
if "hold" not in sys.argv:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)
os.dup2(2, 1)
if "ignore-signals" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
def stay():
    os.close(out)
    time.sleep(300)
    os._exit(0)
pids = {"child": os.getpid()}
pids["grandchild"] = os.fork()
if pids["grandchild"] == 0:
    os.setsid()
    stay()
back, forth = os.pipe()
middle = os.fork()
if middle == 0:
    os.setsid()
    daemon = os.fork()
    if daemon == 0:
        stay()
    os.write(forth, str(daemon).encode())
    os._exit(0)
os.waitpid(middle, 0)
pids["daemon"] = int(os.read(back, 32))
os.write(out, json.dumps(pids).encode() + b"\\n")
stay()
"""


def flood(turn: PromptTurn, args: Args) -> None:
    turn.flood(int(args["N"]), int(args.get("BYTES", FLOOD_SIZE)))


def big(turn: PromptTurn, args: Args) -> None:
    size = int(args["BYTES"])
    empty = len(encode(_update_message(turn, chunk("agent_message_chunk", "")))) + 1
    line = _update_message(turn, chunk("agent_message_chunk", "x" * max(0, size - empty)))
    turn.connection.send(line)


def stall(turn: PromptTurn, args: Args) -> None:
    turn.pause(float(args["SECONDS"]))


def stall_hard(_: PromptTurn, args: Args) -> None:
    time.sleep(float(args["SECONDS"]))


def say_and_stall(turn: PromptTurn, args: Args) -> None:
    """Say and stall in one step: a cancel finds it stalled as soon as the word was heard."""
    turn.say(args["TEXT"])
    time.sleep(60)


def crash(_: PromptTurn, args: Args) -> None:
    os._exit(int(args["CODE"]))


def kill_self(_: PromptTurn, args: Args) -> None:
    number = signal.Signals[f"SIG{args['SIGNAL']}"]
    if signal.getsignal(number) is signal.SIG_DFL:
        # To this very thread, which is then the one that dies of it: a signal to the process is for the main thread,
        # and until that gets its turn this one would go on and end its own.
        signal.pthread_kill(threading.get_ident(), number)
    else:
        os.kill(os.getpid(), number)  # Python's handlers run in the main thread, and have to wake it


def garbage(turn: PromptTurn, args: Args) -> None:
    turn.connection.write(_garbage(turn, args["KIND"]))


def _garbage(turn: PromptTurn, kind: str) -> bytes:
    update = encode(_update_message(turn, {**chunk("agent_message_chunk", "TEXT"), "_meta": {"odd": "ODD"}}))
    lines: dict[str, bytes] = {
        "text": b"hello, this line is not JSON\n",
        "null": b"null\n",
        "number": b"123\n",
        "array": b"[]\n",
        "string": b'"x"\n',
        "blank": b"\n  \n",
        "half-line": update[: len(update) // 2] + b"\n",
        "torn": update[: len(update) // 2],
        "invalid-utf8": update.replace(b"TEXT", b"\xff\xfe broken") + b"\n",
        "lone-surrogate": update.replace(b"TEXT", b"\\ud800 alone") + b"\n",
        "depth": update.replace(b'"ODD"', b"[" * DEPTH + b"]" * DEPTH) + b"\n",
        "2**80": update.replace(b'"ODD"', b"%d" % 2**80) + b"\n",
        "nan": update.replace(b'"ODD"', b"NaN") + b"\n",
        "stray-reply": b'{"jsonrpc":"2.0","id":999999,"result":{}}\n',
    }
    return lines[kind]


GARBAGE = (
    *("text", "null", "number", "array", "string", "blank", "half-line", "torn"),
    *("invalid-utf8", "lone-surrogate", "depth", "2**80", "nan", "stray-reply"),
)


def stderr(_: PromptTurn, args: Args) -> None:
    size = int(args["BYTES"])
    view = memoryview((STDERR_LINE * (size // len(STDERR_LINE) + 1))[:size])
    while view:
        view = view[os.write(2, view) :]


def ignore_signals(turn: PromptTurn, _: Args) -> None:
    turn.connection.on_main_thread(_ignore)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def ignore_stdin_eof(turn: PromptTurn, _: Args) -> None:
    turn.ignores_eof.set()


def spawn_tree(turn: PromptTurn, args: Args) -> None:
    argv = [sys.executable, "-I", "-S", "-c", TREE, *args.get("NAMES", "").split()]
    # The child leads no group of its own: killing the agent's group is to reach it, and it alone.
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout
    turn.message(json.dumps(json.loads(process.stdout.readline())))
    process.stdout.close()


def late(turn: PromptTurn, args: Args) -> None:
    turn.late.append(chunk("agent_message_chunk", args["TEXT"], new_id("msg")))


def unknown_update(turn: PromptTurn, _: Args) -> None:
    turn.send_update({"sessionUpdate": "mystery_update", "mystery": {"answer": 42}, "_meta": None})


def out_of_order(turn: PromptTurn, _: Args) -> None:
    call = {"toolCallId": new_id("call")}
    start = {"sessionUpdate": "tool_call", **call, "title": "Late to start", "kind": "think"}
    turn.send_update({"sessionUpdate": "tool_call_update", **call, "kind": "think", "status": "completed"})
    turn.send_update({**start, "status": "pending"})
    turn.send_update({**start, "status": "in_progress"})
    turn.send_update({"sessionUpdate": "tool_call_update", **call, "status": "pending"})


def env(turn: PromptTurn, args: Args) -> None:
    names = args["NAMES"].split()
    if "!" in args:
        turn.message("\n".join(f"{name}={os.environ.get(name, '')}" for name in names))
    else:
        seen = [f"{name}: {'set' if name in os.environ else 'not set'}" for name in names]
        turn.message("\n".join(seen))


def _update_message(turn: PromptTurn, update: Json) -> Json:
    params = {"sessionId": turn.session.record.id, "update": update}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


MISBEHAVIOUR = (
    StepSpec("flood", "N [BYTES]", "N numbered message chunks as fast as they are read.", flood),
    StepSpec("big", "BYTES", "One line of that size, its newline included.", big),
    StepSpec("stall", "SECONDS", "Says nothing for so long; a cancel ends it.", stall),
    StepSpec(
        "say-and-stall",
        "TEXT",
        "Says it, then nothing for a minute, and does not heed a cancel.",
        say_and_stall,
    ),
    StepSpec("stall-hard", "SECONDS", "Says nothing for so long and does not heed a cancel.", stall_hard),
    StepSpec("crash", "CODE", "Exits at once with that code.", crash),
    StepSpec("kill-self", "SIGNAL", "Sends itself a signal.", kill_self, {"SIGNAL": DEADLY}),
    StepSpec(
        "garbage",
        "KIND",
        "Writes what a client must survive; `torn` ends in mid-line, and the next message follows on it.",
        garbage,
        {"KIND": GARBAGE},
    ),
    StepSpec("stderr", "BYTES", "Writes so much to stderr.", stderr),
    StepSpec("ignore-signals", "", "Ignores TERM, INT and HUP from now on.", ignore_signals),
    StepSpec("ignore-stdin-eof", "", "Stays when the client closes its end, for an hour.", ignore_stdin_eof),
    StepSpec(
        "spawn-tree",
        "[NAMES]",
        "Leaves a child, a grandchild in its own session and a daemon, and says their pids as JSON; "
        "`ignore-signals` makes them stubborn, `hold` makes them keep the agent's stderr open.",
        spawn_tree,
        executes="always",
    ),
    StepSpec("late", "TEXT", "A message after the turn has ended.", late),
    StepSpec("unknown-update", "", "An update of a kind that no one knows.", unknown_update),
    StepSpec("out-of-order", "", "Tool call updates before their call, twice, and backwards.", out_of_order),
    StepSpec("env", "NAMES", "Says which of these variables it has.", env, forced="says their values too"),
)


# Every step there is: the reference page is made from this table (tools/rehearsal.py).

SECTIONS: Mapping[str, tuple[StepSpec, ...]] = {
    "Saying": TALK,
    "Working in the folder, and asking first": WORK,
    "Using the client": REVERSE,
    "Misbehaving": MISBEHAVIOUR,
}
STEPS: Mapping[str, StepSpec] = {spec.name: spec for specs in SECTIONS.values() for spec in specs}
