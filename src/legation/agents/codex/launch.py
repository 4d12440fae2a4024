"""The set-up of Codex, so that it asks before it acts, and calls nobody but its model.

Nothing is written to its home: what holds for all threads goes to the server as `-c` overrides, the rest with each
thread. No key is among it: Codex is told the name of the variable that holds one.

Codex runs what `~/.codex/config.toml` names (`notify`, MCP servers, a provider's program for keys), obeys the allow rules in
`~/.codex/rules` and sets the variables of `~/.codex/.env`; the app server has no option against any of it. The home is the
agent's: what was allowed there once, as a mere change of a file, must not decide what is run without asking ever after.
Nothing of ours and nothing of a sign-in writes there, so that where such a file is, no thread is opened.
"""

from __future__ import annotations

import json
import os.path
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from legation.agents.codex.messages import ThreadSettings
from legation.agents.driver import OpenRequest
from legation.agents.native import pairs
from legation.errors import Forbidden
from legation.wire.acp.methods import McpServer

# Asks for every command and every change of a file. A configuration file may not name it any more; a thread may.
APPROVALS: Final = "untrusted"
REVIEWER: Final = "user"  # and not another model
# None of its own: in one, what was approved is tried inside, and silently done again outside where that seemed to
# fail, so that nobody knows how often it ran. The jail is ours, and asking does not depend on it.
SANDBOX: Final = "danger-full-access"

PROVIDER: Final = "legation"
SIGNED_IN: Final = "openai"  # the provider that Codex has built in, with what `codex login` left
KEYS: Final = ("CODEX_API_KEY", "OPENAI_API_KEY")
BASE: Final = "OPENAI_BASE_URL"
DEFAULT_BASE: Final = "https://api.openai.com/v1"

_ALWAYS: Final[Mapping[str, object]] = {
    "check_for_update_on_startup": False,
    "suppress_unstable_features_warning": True,
    "analytics.enabled": False,
    "web_search": "disabled",  # done by the model's provider: nothing is asked and no jail sees it
    "shell_environment_policy.ignore_default_excludes": False,  # commands get no variable named KEY, TOKEN, SECRET
    "features.apps": False,
    "features.default_mode_request_user_input": True,  # questions outside plan mode too
    "features.goals": False,  # turns that it starts by itself
    "features.hooks": False,
    "features.image_generation": False,
    "features.memories": False,
    "features.plugins": False,  # calls home, and holds up the exit
    "features.shell_snapshot": False,  # a login shell that it runs unasked, and a file that it has later ones read
    "features.tool_suggest": False,
    "features.unified_exec_tty": False,  # what is typed into a running program is not asked about
    "features.view_image": False,  # nor which picture of this machine the model is shown
}


def overrides(env: Mapping[str, str]) -> tuple[str, ...]:
    settings = {**_ALWAYS, **_provider(env)}
    return tuple(word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}"))


def provider(env: Mapping[str, str]) -> str:
    return PROVIDER if _key(env) else SIGNED_IN


def _provider(env: Mapping[str, str]) -> dict[str, object]:
    key, base = _key(env), env.get(BASE)
    if key is None:
        return {"openai_base_url": base} if base else {}
    own = f"model_providers.{PROVIDER}"
    return {
        "model_provider": PROVIDER,
        # By this name it takes an endpoint for OpenAI's own, and uses more of it than others have.
        f"{own}.name": "Legation" if base else "OpenAI",
        f"{own}.base_url": base or DEFAULT_BASE,
        f"{own}.env_key": key,
        f"{own}.wire_api": "responses",
    }


def _key(env: Mapping[str, str]) -> str | None:
    return next((name for name in KEYS if env.get(name)), None)


def thread_settings(
    request: OpenRequest, env: Mapping[str, str], trusts: Callable[[str], bool], model: str | None = None
) -> ThreadSettings:
    cwd, directories = request.cwd, request.additional_directories
    return ThreadSettings(
        cwd=cwd,
        approval_policy=APPROVALS,
        approvals_reviewer=REVIEWER,
        sandbox=SANDBOX,
        config={
            **_trust((cwd, *directories), trusts),
            "mcp_servers": {each.name: _server(each) for each in request.mcp_servers},
        },
        model=model,
        model_provider=provider(env),
        runtime_workspace_roots=(cwd, *directories) if directories else None,
    )


def _trust(folders: tuple[str, ...], trusts: Callable[[str], bool]) -> dict[str, object]:
    """Trust of folders, said for every thread: one that nothing is said of Codex trusts by itself, and writes that down. It is said of
    the folders above as well, for Codex reads the configuration there and asks for each whether that one is trusted."""
    names = dict.fromkeys(name for each in folders for name in (each, os.path.realpath(each)))
    around = dict.fromkeys(str(place) for name in names for place in (Path(name), *Path(name).parents))
    levels = {place: "trusted" if trusts(place) else "untrusted" for place in around}
    own = all(levels[str(Path(name))] == "trusted" for name in names)
    return {
        "projects": {place: {"trust_level": level} for place, level in levels.items()},
        **({"features": {"hooks": True}} if own else {}),
    }


def _server(server: McpServer) -> dict[str, object]:
    """Each tool is asked about, also one that says of itself that it only reads."""
    asking: dict[str, object] = {"default_tools_approval_mode": "prompt"}
    if server.type == "stdio":
        return {
            "command": server.command,
            "args": list(server.args or ()),
            "env": pairs(server.env),
            **asking,
        }
    return {"url": server.url, "http_headers": pairs(server.headers), **asking}


# Members of the configuration that run and allow nothing. What is said of projects each thread says anew.
_HARMLESS: Final = frozenset(
    (
        "cli_auth_credentials_store",
        "history",
        "model",
        "model_reasoning_effort",
        "model_reasoning_summary",
        "model_verbosity",
        "notice",
        "personality",
        "projects",
        "service_tier",
        "tui",
    )
)


def refuse_orders(env: Mapping[str, str]) -> None:
    """`env` is what Codex is started with. Blocks."""
    found = next(_orders(Path(env.get("CODEX_HOME") or Path(env["HOME"], ".codex"))), None)
    if found is not None:
        raise Forbidden(
            f"cannot start Codex: {found} would decide what it runs and allows unasked; look at it and remove it, and give"
            " settings of your own as `-c` arguments"
        )


def _orders(folder: Path) -> Iterator[str]:
    yield from (str(each) for each in sorted(folder.glob("rules/*")))
    if (folder / ".env").exists():
        yield str(folder / ".env")
    file = folder / "config.toml"
    try:
        members = tomllib.loads(file.read_text()).keys()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        yield str(file)
        return
    yield from (f"{name!r} in {file}" for name in sorted(members - _HARMLESS))
