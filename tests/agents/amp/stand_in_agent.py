"""A stand-in for Amp: speaks the output that Amp documents, asks by the ways that it has, and does as the prompt says.

Run as a program; the prompt is a line of Python calls. It is started by tests alone.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

HELP = """\
Amp CLI

Usage: amp [options] [command]

Commands:

  threads                       [alias: t, thread] Manage threads
    continue                    [alias: c] Continue an existing thread
  plugins                       [alias: plugin] Manage plugins
  permissions                   [alias: permission] Manage permissions

Options:

  -V, --version
      Print the version number and exit
  --settings-file <value>
      Custom settings file path
  -m, --mode <value>
      Set the agent mode (low, medium, high, or a plugin mode by key or label) — controls the
      model
  --no-color
      Disable color
  -x, --execute [message]
      Use execute mode
  --stream-json
      When used with --execute, output in Claude Code-compatible stream JSON format
  --stream-json-thinking
      Include thinking blocks
  --stream-json-input
      Read JSON Lines user messages from stdin.
  --plugin-ready-timeout [seconds]
      When used with --execute, how long to wait for plugins
"""

HOME = Path(os.environ["HOME"])
LACKS = os.environ.get("STANDIN_LACKS", "").split()  # words that its help has not
REFUSES = os.environ.get(
    "STANDIN_REFUSES", ""
).split()  # options that it does not take, though its help has them
ARGV = sys.argv[1:]
THREAD = ARGV[2] if ARGV[:2] == ["threads", "continue"] else f"T-{uuid.uuid4()}"
STREAM = "--stream-json" in ARGV
Object = dict[str, Any]


def main() -> None:
    with (HOME / "argv.jsonl").open("a") as log:
        log.write(json.dumps({"argv": ARGV}) + "\n")
    if "--version" in ARGV:
        put("0.0.1-standin (released today)")
    elif "--help" in ARGV:
        put("\n".join(line for line in HELP.split("\n") if not any(word in line for word in LACKS)))
    else:
        for option in REFUSES:
            if option in ARGV:
                fail(f"error: unknown option '{option}'")
        turn()


def turn() -> None:
    if "AMP_API_KEY" not in os.environ:
        put("No API key found. Starting login flow...")
        put("https://example.invalid/login?authToken=a-secret-token")
        stay()
    if plugin_installed():
        door({"way": "plugin", "hello": True})
    prompt = sys.stdin.read()
    if "--stream-json-input" in ARGV:
        prompt = json.loads(prompt)["message"]["content"][0]["text"]
    say({"type": "system", "subtype": "init", "session_id": THREAD, "tools": [], "mcp_servers": []})
    exec(prompt, globals())  # what the test wrote
    if STREAM:
        result("success", words="done")


def plugin_installed() -> bool:
    return "--plugin-ready-timeout" in ARGV and (HOME / ".config/amp/plugins/legation.ts").exists()


def put(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(message: Object) -> None:
    if STREAM:
        put(json.dumps(message))


def text(words: str) -> None:
    if not STREAM:
        put(words)
    block({"type": "text", "text": words})


def think(words: str) -> None:
    block({"type": "thinking", "thinking": words})


def block(content: Object) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5, "max_tokens": 968000}
    message = {"type": "message", "role": "assistant", "content": [content], "usage": usage}
    say({"type": "assistant", "message": message, "parent_tool_use_id": None, "session_id": THREAD})


def tool(name: str, arguments: Object, run: Callable[[Object], str] = str, *, ask: bool = True) -> None:
    call = f"toolu_{uuid.uuid4().hex[:12]}"
    block({"type": "tool_use", "id": call, "name": name, "input": arguments})
    refusal, arguments = permitted(call, name, arguments) if ask else ("", arguments)
    output = refusal or run(arguments)
    content = [{"type": "tool_result", "tool_use_id": call, "content": output, "is_error": bool(refusal)}]
    message = {"role": "user", "content": content}
    say({"type": "user", "message": message, "parent_tool_use_id": None, "session_id": THREAD})


def write(given: Object) -> str:
    Path(given["path"]).write_text(given["content"])
    return "written"


def permitted(call: str, name: str, arguments: Object) -> tuple[str, Object]:
    """By all the ways that it has, as an Amp that heeds both would. The refusal, if any, and what to act on."""
    if plugin_installed():
        answer = door({"way": "plugin", "id": call, "tool": name, "input": arguments})
        if not answer["allow"]:
            return str(answer["message"]), arguments
        arguments = answer.get("input") or arguments
    if "--settings-file" in ARGV:
        settings = Path(ARGV[ARGV.index("--settings-file") + 1])
        (rule,) = json.loads(settings.read_text())["amp.permissions"]
        done = subprocess.run(
            [rule["to"]],
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            env={**os.environ, "AGENT_TOOL_NAME": name},
        )
        if done.returncode:
            return done.stderr.strip(), arguments
    return "", arguments


def door(message: Object) -> Object:
    folder, _, name = os.environ["LEGATION_AMP_DOOR"].rpartition("/")
    before = Path.cwd()
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        os.chdir(before)
        connection.sendall(json.dumps(message).encode() + b"\n")
        answer: Object = json.loads(connection.makefile("rb").readline())
        return answer


def result(subtype: str, **told: Any) -> None:
    failed = subtype != "success"
    words = told.pop("words")
    say(
        {
            "type": "result",
            "subtype": subtype,
            "is_error": failed,
            "num_turns": 1,
            "error" if failed else "result": words,
            "session_id": THREAD,
            **told,
        }
    )
    sys.exit(failed)


def fail(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.exit(1)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> None:
    time.sleep(600)


if __name__ == "__main__":
    main()
