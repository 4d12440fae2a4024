"""Real agents in their one-shot modes: a prompt in, the model asked, and gone. Nothing of Legation's is between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import real_agents

from legation.proc import child_environment
from legation.testing.model import ScriptedModel

WAIT = 240.0  # seconds for a whole run: the agent's time

_CODEX_CONFIG = """\
model = "{model}"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@dataclass(frozen=True)
class Shot:
    argv: tuple[str, ...]
    env: Mapping[str, str]


Prepare = Callable[[ScriptedModel, Path], Shot]


async def shoot(prepare: Prepare, model: ScriptedModel, place: Path, prompt: str) -> str:
    """What it wrote to its output; its work folder is `place / "work"`."""
    home, tmp, work = place / "home", place / "tmp", place / "work"
    for folder in (home, tmp, work):
        folder.mkdir(exist_ok=True)
    shot = prepare(model, home)
    env = child_environment({**shot.env, **model.proxy_variables()}, home=home, tmp=tmp)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *shot.argv, prompt, cwd=work, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(WAIT):
            said, complained = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, (said + complained).decode()
    return said.decode()


def claude(model: ScriptedModel, _: Path) -> Shot:
    program = next(
        (real_agents.INSTALLED / "agents" / "claude").glob("*/node_modules/@anthropic-ai/*/claude")
    )
    flags = ("--print", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
    env = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "not-a-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "ENABLE_TOOL_SEARCH": "false",
        "IS_SANDBOX": "1",  # it refuses to skip permissions as root otherwise
    }
    return Shot((str(program), *flags), env)


def codex(model: ScriptedModel, home: Path, name: str = "gpt-5.5") -> Shot:
    packages = real_agents.install("codex") / "node_modules" / "@openai"
    program = next(packages.glob("codex-*/vendor/*/bin/codex"))
    folder = home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(_CODEX_CONFIG.format(url=model.url, model=name))
    flags = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Shot((str(program), *flags), {"CODEX_HOME": str(folder), "SCRIPTED_KEY": "not-a-key"})


def codex_code_mode(model: ScriptedModel, home: Path) -> Shot:
    """With a model that has one freeform tool, whose text is JavaScript."""
    return codex(model, home, "gpt-6.1-sol")


def opencode(model: ScriptedModel, _: Path) -> Shot:
    program = next((real_agents.INSTALLED / "agents" / "opencode").glob("*/node_modules/*/bin/opencode"))
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "not-a-key"},
        "models": {"scripted-model": {"tool_call": True, "limit": {"context": 100_000, "output": 10_000}}},
    }
    config = {
        "model": "scripted/scripted-model",
        "small_model": "scripted/scripted-model",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["scripted"],
        "provider": {"scripted": provider},
    }
    off = ("MODELS_FETCH", "AUTOUPDATE", "DEFAULT_PLUGINS", "SHARE", "LSP_DOWNLOAD")
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}
    env |= {f"OPENCODE_DISABLE_{name}": "1" for name in off}
    return Shot((str(program), "run", "--format", "json", "--auto"), env)
