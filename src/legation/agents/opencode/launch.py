"""What OpenCode's server is started with: that it asks before everything, and whose configuration counts.

INV-O1  Whatever OpenCode can ask for it asks for; only what touches nothing (its todo list, its questions) is free.
INV-O2  In a folder that is not trusted nothing of the folder's configuration counts: settings, plugins, agents,
        commands, MCP servers, formatters, language servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from legation.errors import ConfigInvalid
from legation.proc import Command

CONTENT: Final = "OPENCODE_CONFIG_CONTENT"
PASSWORD: Final = "OPENCODE_SERVER_PASSWORD"  # noqa: S105 - the variable's name
_SERVE: Final = ("serve", "--port", "0", "--hostname", "127.0.0.1")

# Nothing is looked up or fetched but what the conversation needs.
_QUIET: Final = dict.fromkeys(
    (
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_SHARE",
    ),
    "1",
)
_PLAN_MODE: Final = {
    "OPENCODE_EXPERIMENTAL_PLAN_MODE": "1"
}  # a plan is then shown for approval, as a question
_UNTRUSTED: Final = dict.fromkeys(
    (
        "OPENCODE_DISABLE_PROJECT_CONFIG",
        "OPENCODE_DISABLE_EXTERNAL_SKILLS",
        "OPENCODE_DISABLE_CLAUDE_CODE",
    ),
    "1",
)

# The last rule that matches counts, so that the general one stands first.
_ASK: Final = {
    "*": "ask",
    "todowrite": "allow",
    "question": "allow",
    "plan_exit": "allow",
    "plan_enter": "deny",
}
# Rules of ours would else undo what these agents are denied by nature.
_AGENTS: Final = {
    "plan": {
        "edit": {"*": "deny", "*opencode/plans/*.md": "ask"},
        "task": {"*": "ask", "general": "deny"},
    },
    "explore": {
        "*": "deny",
        **dict.fromkeys(("read", "grep", "glob", "list", "bash", "webfetch", "websearch"), "ask"),
    },
    "general": {"todowrite": "deny", "question": "deny"},
}
# A tool call that is rejected is no reason to end the turn: the model is told why, and goes on.
_GO_ON: Final = {"experimental": {"continue_loop_on_deny": True}}


def serve(command: Command, *, trusted: bool, password: str) -> Command:
    """The server is of no folder: each session names its own."""
    env = {
        **command.env,
        **_QUIET,
        **_PLAN_MODE,
        **({} if trusted else _UNTRUSTED),
        CONTENT: msgspec.json.encode(settings(command.env.get(CONTENT), trusted=trusted)).decode(),
        PASSWORD: password,
    }
    return replace(command, argv=(*command.argv, *_SERVE), cwd=Path(command.env["HOME"]), env=env)


def settings(given: str | None, *, trusted: bool) -> Mapping[str, Any]:
    """What the environment had already, a provider and a model mostly, with our rules over it."""
    own: dict[str, Any] = {
        "autoupdate": False,
        "share": "disabled",
        **_GO_ON,
        "agent": {name: {"permission": rules} for name, rules in _AGENTS.items()},
    }
    if not trusted:  # programs of the repository, which would run without being asked for
        own |= {"formatter": False, "lsp": False}
    merged = _over(_read(given), own)
    return {**merged, "permission": _ASK}


def _read(given: str | None) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(given) if given else {}
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        raise ConfigInvalid(f"cannot start OpenCode: {CONTENT} is no JSON object; mend it, or leave it out")
    return value


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        before = merged.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = _over(before, value)
        else:
            merged[name] = value
    return merged
