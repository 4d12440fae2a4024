"""Settings that OpenCode's server is started with: that it asks before everything, and whose configuration counts.

INV-O1  Whatever OpenCode can ask for it asks for; only what touches nothing (its todo list, its questions) is free.
INV-O2  In a folder that is not trusted nothing of the folder's configuration counts: settings, plugins, agents,
        commands, MCP servers, formatters, language servers.

OpenCode loads plugins by two ways. The older one heeds OPENCODE_DISABLE_PROJECT_CONFIG; the newer, seen in 1.18, heeds
nothing. A folder that is not trusted and brings plugins is therefore refused (INV-O2), and so is a home that does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from legation.agents.native import pairs
from legation.errors import ConfigInvalid, Forbidden
from legation.proc import Command
from legation.wire.acp.methods import McpServer

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
    """Settings that the environment had already, a provider and a model mostly, with our rules over it."""
    own: dict[str, Any] = {
        "autoupdate": False,
        "share": "disabled",
        **_GO_ON,
        "agent": {name: {"permission": rules} for name, rules in _AGENTS.items()},
    }
    if not trusted:  # programs of the repository, which would run without being asked for
        own |= {"formatter": False, "lsp": False}
    merged = _over(_given_settings(given), own)
    return {**merged, "permission": _ASK}


def _given_settings(given: str | None) -> Mapping[str, Any]:
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


def mcp_config(server: McpServer) -> dict[str, Any]:
    if server.type == "stdio":
        return {
            "type": "local",
            "command": [server.command or "", *(server.args or ())],
            "environment": pairs(server.env),
            "enabled": True,
        }
    return {
        "type": "remote",
        "url": server.url or "",
        "headers": pairs(server.headers),
        "oauth": False,  # nobody is there to open a browser
        "enabled": True,
    }


# Code that a folder brings.


_OWN: Final = ".opencode"
_FOLDERS: Final = ("plugin", "plugins")
_CODE: Final = (".js", ".ts")
_SETTINGS_FILES: Final = ("opencode.json", "opencode.jsonc")
_NAMED: Final = re.compile(r'"plugins?"\s*:')
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
SETTINGS_LIMIT: Final = (
    1024 * 1024
)  # bytes of a settings file; a longer one is not looked through, and not let in


def must_bring_no_code(folder: str) -> None:
    """Refuse a folder that is not trusted and brings plugins. Those above it count too, up to the owner's home."""
    for found in _code(Path(folder)):
        raise Forbidden(
            f"cannot work in {folder}: it brings plugins ({found}), which OpenCode runs whatever it is told; remove them,"
            " or trust the folder with `legation trust`"
        )


def home_must_bring_no_code(env: Mapping[str, str]) -> None:
    """`env` is what OpenCode is started with. Its home is the agent's: a file that was once allowed there, as a mere
    change of a file, must not be run unasked ever after."""
    home = Path(env["HOME"])
    settings = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    for found in (file for where in (settings, home / _OWN) for file in _brought(where)):
        raise Forbidden(
            f"cannot start OpenCode: {found} in its own home would be run unasked; look at it and remove it"
        )


def _code(folder: Path) -> Iterator[Path]:
    home = Path.home().resolve()
    for place in (folder.resolve(), *folder.resolve().parents):
        if place == home:
            return
        yield from _brought(place / _OWN)
        yield from (file for file in _files(place) if _names_plugins(file))


def _brought(own: Path) -> Iterator[Path]:
    """Find the code in a folder that is OpenCode's."""
    for each in (own / name for name in _FOLDERS):
        if each.is_dir():
            yield from (file for file in each.iterdir() if file.suffix in _CODE)
    yield from (file for file in _files(own) if _names_plugins(file))


def _files(where: Path) -> Iterator[Path]:
    return (where / name for name in _SETTINGS_FILES if (where / name).exists())


def _names_plugins(file: Path) -> bool:
    """Look for plugins in its text, for it may hold comments; what cannot be read counts as if it named some."""
    try:
        if file.stat().st_size > SETTINGS_LIMIT:
            return True
        text = file.read_text(errors="replace")
    except OSError:
        return True
    return bool(_NAMED.search(_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)))
