"""Makes a recording small: `python -m tests.agents.opencode.cut_recording recording.jsonl > small.jsonl`.

Of a transcript (lines `{"dir": "in" | "sse" | ..., "msg": ...}`) only what a session's replay needs is kept: prompts,
aborts, and events; no snapshots, no addresses, no long texts.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LONG = 400  # characters of a text
_LEFT_OUT = ("plugin.added", "server.heartbeat", "session.diff", "session.updated")
_NAMELESS = {
    "url",
    "snapshot",
    "root",
    "slug",
    "projectID",
    "version",
    "responseHeaders",
    "responseBody",
    "path",
}


def small(line: str) -> str | None:
    entry = json.loads(line)
    said = entry["msg"]
    if entry["dir"] == "sse" and said["type"] not in _LEFT_OUT:
        return json.dumps({"dir": "sse", "msg": _shortened(said)})
    if entry["dir"] == "in" and said["path"].endswith(("prompt_async", "abort", "reply", "reject")):
        return json.dumps({"dir": "in", "path": said["path"].rpartition("/")[2]})
    return None


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in _NAMELESS or isinstance(each, dict)}
        return {name: _shortened(each) for name, each in kept.items() if name != "path"}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    return value[:LONG] if isinstance(value, str) else value


if __name__ == "__main__":
    with open(sys.argv[1]) as recording:  # noqa: PTH123 - a path from the command line
        for kept in filter(None, map(small, recording)):
            sys.stdout.write(kept + "\n")
