"""The real ACP agents of the catalogue, each with what it needs to take the scripted model for its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import real_agents

from legation.agents.catalogue import Catalogue, Start
from legation.agents.catalogue.catalogue import home_of
from legation.host.options import AgentDefinition
from legation.testing.model import AnthropicWire, ScriptedModel
from legation.testing.model.gemini import GeminiWire
from legation.testing.model.openai_chat import OpenAiChatWire
from legation.testing.model.openai_responses import OpenAiResponsesWire

MODEL = "scripted-model"
# A command that each of them asks about, whatever it thinks of what is harmless.
COMMAND = "mkdir -p made; echo $LEGATION_HOSTILE > variable.txt"


@dataclass(frozen=True, slots=True)
class Kind:
    """`shell` is its tool for commands, with the arguments beside the command's own. `sign_in` is ACP's method for the
    key of the environment. `refused` is how a turn ends whose permission was refused."""

    name: str
    shell: str
    argument: str = "command"
    more: Mapping[str, object] | None = None
    sign_in: str | None = None
    refused: str = "end_turn"

    def command(self, command: str = COMMAND) -> tuple[str, dict[str, object]]:
        return self.shell, {self.argument: command, **(self.more or {"description": "A command"})}


CLAUDE = Kind("claude-acp", "Bash")
CODEX = Kind(
    "codex-acp",
    "exec_command",
    "cmd",
    {"sandbox_permissions": "require_escalated", "justification": "It must"},
    "openai-api-key",
    "cancelled",
)
OPENCODE = Kind("opencode-acp", "bash")
GEMINI = Kind("gemini", "run_shell_command", sign_in="gemini-api-key")


def start_of(kind: Kind) -> Start:
    try:
        real_agents.agent(kind.name)
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    return Catalogue(real_agents.INSTALLED).start(kind.name)


def scripted_model() -> ScriptedModel:
    """They may look for news where no switch keeps them from that: they are refused, and that is all."""
    wires = (AnthropicWire(), OpenAiChatWire(), OpenAiResponsesWire(), GeminiWire())
    return ScriptedModel(wires=wires, may_knock=True)


def variables(model: ScriptedModel) -> dict[str, str]:
    """What leads any of them to the model and nowhere else."""
    return {
        **model.proxy_variables(),
        "ANTHROPIC_API_KEY": "not-a-key",
        "ANTHROPIC_BASE_URL": model.url,
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
        "OPENAI_API_KEY": "not-a-key",
        "GEMINI_API_KEY": "not-a-key",
        "GOOGLE_GEMINI_BASE_URL": model.url,
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_CONFIG_CONTENT": json.dumps(_opencode(model)),
    }


def furnish(kind: Kind, data_dir: Path, model: ScriptedModel) -> None:
    """The owner's own configuration, in the agent's home."""
    home = home_of(data_dir, kind.name)
    if kind is CODEX:
        (home / ".codex").mkdir(parents=True, exist_ok=True)
        (home / ".codex" / "config.toml").write_text(_codex(model))


def definition(kind: Kind, start: Start, work: Path, model: ScriptedModel) -> AgentDefinition:
    return AgentDefinition(
        id=kind.name,
        command=start.argv[0],
        args=start.argv[1:],
        cwd=work,
        env={**start.env, **variables(model)},
        driver=start.driver,
        beginning=start.beginning,
    )


def _opencode(model: ScriptedModel) -> dict[str, object]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "not-a-key"},
        "models": {MODEL: {"tool_call": True, "limit": {"context": 100_000, "output": 4_000}}},
    }
    return {
        "model": f"scripted/{MODEL}",
        "small_model": f"scripted/{MODEL}",
        "enabled_providers": ["scripted"],
        "provider": {"scripted": provider},
    }


def _codex(model: ScriptedModel) -> str:
    return f"""\
model = "gpt-5.5"
model_provider = "scripted"
approval_policy = "on-request"
sandbox_mode = "workspace-write"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false

[model_providers.scripted]
name = "scripted"
base_url = "{model.url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
"""
