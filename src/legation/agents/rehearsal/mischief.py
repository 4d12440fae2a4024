"""Steps of an agent that misbehaves; nothing here happens unless a script says so."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from legation.agents.rehearsal.connection import Json, encode
from legation.agents.rehearsal.script import Args, StepSpec
from legation.agents.rehearsal.turn import Turn, chunk, new_id

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


def flood(turn: Turn, args: Args) -> None:
    turn.flood(int(args["N"]), int(args.get("BYTES", FLOOD_SIZE)))


def big(turn: Turn, args: Args) -> None:
    size = int(args["BYTES"])
    empty = len(encode(_update_message(turn, chunk("agent_message_chunk", "")))) + 1
    line = _update_message(turn, chunk("agent_message_chunk", "x" * max(0, size - empty)))
    turn.connection.send(line)


def stall(turn: Turn, args: Args) -> None:
    turn.pause(float(args["SECONDS"]))


def stall_hard(_: Turn, args: Args) -> None:
    time.sleep(float(args["SECONDS"]))


def say_and_stall(turn: Turn, args: Args) -> None:
    """In one step: a cancel finds it stalled as soon as the word was heard."""
    turn.say(args["TEXT"])
    time.sleep(60)


def crash(_: Turn, args: Args) -> None:
    os._exit(int(args["CODE"]))


def kill_self(_: Turn, args: Args) -> None:
    number = signal.Signals[f"SIG{args['SIGNAL']}"]
    if signal.getsignal(number) is signal.SIG_DFL:
        # To this very thread, which is then the one that dies of it: a signal to the process is for the main thread,
        # and until that gets its turn this one would go on and end its own.
        signal.pthread_kill(threading.get_ident(), number)
    else:
        os.kill(os.getpid(), number)  # Python's handlers run in the main thread, and have to wake it


def garbage(turn: Turn, args: Args) -> None:
    turn.connection.write(_garbage(turn, args["KIND"]))


def _garbage(turn: Turn, kind: str) -> bytes:
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


def stderr(_: Turn, args: Args) -> None:
    size = int(args["BYTES"])
    view = memoryview((STDERR_LINE * (size // len(STDERR_LINE) + 1))[:size])
    while view:
        view = view[os.write(2, view) :]


def ignore_signals(turn: Turn, _: Args) -> None:
    turn.connection.on_main_thread(_ignore)


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def ignore_stdin_eof(turn: Turn, _: Args) -> None:
    turn.ignores_eof.set()


def spawn_tree(turn: Turn, args: Args) -> None:
    argv = [sys.executable, "-I", "-S", "-c", TREE, *args.get("NAMES", "").split()]
    # The child leads no group of its own: killing the agent's group is to reach it, and it alone.
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout
    turn.message(json.dumps(json.loads(process.stdout.readline())))
    process.stdout.close()


def late(turn: Turn, args: Args) -> None:
    turn.late.append(chunk("agent_message_chunk", args["TEXT"], new_id("msg")))


def unknown_update(turn: Turn, _: Args) -> None:
    turn.send_update({"sessionUpdate": "mystery_update", "mystery": {"answer": 42}, "_meta": None})


def out_of_order(turn: Turn, _: Args) -> None:
    call = {"toolCallId": new_id("call")}
    start = {"sessionUpdate": "tool_call", **call, "title": "Late to start", "kind": "think"}
    turn.send_update({"sessionUpdate": "tool_call_update", **call, "kind": "think", "status": "completed"})
    turn.send_update({**start, "status": "pending"})
    turn.send_update({**start, "status": "in_progress"})
    turn.send_update({"sessionUpdate": "tool_call_update", **call, "status": "pending"})


def env(turn: Turn, args: Args) -> None:
    names = args["NAMES"].split()
    if "!" in args:
        turn.message("\n".join(f"{name}={os.environ.get(name, '')}" for name in names))
    else:
        seen = [f"{name}: {'set' if name in os.environ else 'not set'}" for name in names]
        turn.message("\n".join(seen))


def _update_message(turn: Turn, update: Json) -> Json:
    params = {"sessionId": turn.session.record.id, "update": update}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


MISCHIEF = (
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
