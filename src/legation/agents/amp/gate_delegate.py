"""Run by Amp for each call of a tool, by its permission rules: asks Legation, and says so by its exit code.

It stands alone: it is a program of its own, with nothing but the standard library.
"""

import json
import os
import socket
import sys

ALLOW, REJECT = 0, 2  # as Amp reads them; 1 would be "ask somebody else"


def main() -> int:
    try:
        answer = ask(sys.argv[1], os.environ.get("AGENT_TOOL_NAME", ""), sys.stdin.buffer.read())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"Legation could not be asked: {error}\n")
        return REJECT
    if answer.get("allow") is True:
        return ALLOW
    sys.stderr.write(f"{answer.get('message')}\n")
    return REJECT


def ask(door: str, tool: str, given: bytes) -> dict[str, object]:
    folder, _, name = door.rpartition("/")
    os.chdir(folder)  # the path of a socket may be too long for the kernel
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        question = {"way": "delegate", "tool": tool, "input": json.loads(given or b"{}")}
        connection.sendall(json.dumps(question).encode() + b"\n")
        answer = json.loads(connection.makefile("rb").readline())
    if not isinstance(answer, dict):
        raise ValueError("the answer is none")
    return answer


if __name__ == "__main__":
    sys.exit(main())
