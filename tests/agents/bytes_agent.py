"""An agent that sends exactly the bytes a test wants: a few lines of Python with these functions at hand."""

import sys
from pathlib import Path

from legation.proc import Command, child_environment

PRELUDE = r"""
import json, os, signal, sys

def read():
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line else sys.exit(0)

def raw(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]

def send(**message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

def line(text, session="s1"):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    params = {"sessionId": session, "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode() + b"\n"

def update(text, session="s1"):
    raw(line(text, session))

def serve(method):
    while (message := read()).get("method") != method:
        pass
    return message["id"]

def hello(version=1):
    send(id=serve("initialize"), result={"protocolVersion": version})

def session(name="s1"):
    send(id=serve("session/new"), result={"sessionId": name})

def prompted():
    return serve("session/prompt")

def done(prompt, reason="end_turn"):
    send(id=prompt, result={"stopReason": reason})

def answer(wanted):
    while (message := read()).get("id") != wanted or "method" in message:
        pass
    return message

OPTIONS = [{"optionId": kind, "name": kind, "kind": kind}
           for kind in ("allow_always", "allow_once", "reject_always", "reject_once")]

def permission(number, session="s1", options=OPTIONS, **call):
    params = {"sessionId": session, "toolCall": {"toolCallId": f"call{number}", **call}, "options": options}
    send(id=number, method="session/request_permission", params=params)

def stay():
    while sys.stdin.buffer.readline():
        pass
"""


def scripted(source: str, folder: Path, *, name: str = "scripted") -> Command:
    """`folder` is its HOME, its TMPDIR and its working folder."""
    argv = (sys.executable, "-I", "-S", "-c", PRELUDE + source)
    return Command(argv, folder, child_environment({}, home=folder, tmp=folder), name)
