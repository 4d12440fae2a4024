"""What an agent finds in its environment: names that are allowed, its own keys, and nothing else of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from legation.agents.catalogue.entries import KNOWN, Packaged
from legation.host.agent import AgentHomes
from legation.host.launch import AgentLauncher
from legation.proc.launcher import INHERITED
from legation.redact import Redactor

# The keys that the seeds name, and who is given each.
KEYS = {
    "ANTHROPIC_API_KEY": {"claude", "claude-acp", "opencode", "opencode-acp", "amp", "pi"},
    "CLAUDE_API_KEY": set(),  # claude reads it by another name
    "ANTHROPIC_AUTH_TOKEN": {"claude", "claude-acp"},
    "CLAUDE_CODE_OAUTH_TOKEN": {"claude", "claude-acp"},
    "OPENAI_API_KEY": {"codex", "codex-acp", "opencode", "opencode-acp", "pi"},
    "CODEX_API_KEY": {"codex", "codex-acp"},
    "GEMINI_API_KEY": {"gemini", "pi"},
    "GOOGLE_API_KEY": {"gemini"},
    "AMP_API_KEY": {"amp"},
    "CURSOR_API_KEY": {"cursor"},
}
# The addresses that go with them: a key without the one that it is for would go elsewhere.
ADDRESSES = {
    "ANTHROPIC_BASE_URL": {"claude", "claude-acp"},
    "OPENAI_BASE_URL": {"codex", "codex-acp"},
    "GOOGLE_GEMINI_BASE_URL": {"gemini"},
    "AMP_URL": {"amp"},
}
GIVEN = KEYS | ADDRESSES
# What Legation's own environment may hold besides, and no agent is to see.
OURS = (
    "LEGATION_TOKEN",
    "LEGATION_VAULT_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "DATABASE_URL",
    "SSH_AUTH_SOCK",
    "HTTPS_PROXY",
    "NODE_OPTIONS",
    "LD_PRELOAD_OF_OURS",
    "PYTHONPATH_OF_OURS",
    "OPENCODE_CONFIG_CONTENT",
    "CODEX_HOME",
    "CLAUDE_CONFIG_DIR",
    "XDG_CONFIG_HOME",
)
# Switches that a way of starting an agent sets, by how they begin: none of them holds a secret of ours.
SWITCHES = ("CLAUDE_CODE_", "OPENCODE_", "GEMINI_CLI_TRUST_WORKSPACE", "AMP_", "NO_COLOR")
STARTED = KNOWN


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentLauncher:
    """With every agent's program on PATH, as far as finding it goes."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for entry in STARTED:
        for program in [each for each in (entry.way.program,) if isinstance(each, Packaged)]:
            for name in (program.on_path, *(other for _, other in program.helpers.values())):
                (programs / name).write_text("#!/bin/sh\n")
                (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name in (*GIVEN, *OURS):
        monkeypatch.setenv(name, f"value-of-{name}")
    return AgentLauncher(tmp_path / "data", None, "local", Redactor())


async def environment(launcher: AgentLauncher, agent: str, workspace: str, place: Path) -> dict[str, str]:
    work = place / "work"
    work.mkdir(exist_ok=True)
    launch = await launcher.launch(workspace, agent, work)
    command, _ = AgentHomes(place / "data", temporary=False, workspace=workspace).command(launch.definition)
    return dict(command.env)


def own(agent: str) -> set[str]:
    return {name for name, agents in GIVEN.items() if agent in agents}


def beyond_the_ordinary(found: dict[str, str]) -> set[str]:
    ordinary = {*INHERITED, "HOME", "TMPDIR"}
    return {
        name
        for name in found
        if name not in ordinary
        and not name.startswith("LC_")
        and (name in GIVEN or not name.startswith(SWITCHES))
    }


@pytest.mark.parametrize("agent", [entry.name for entry in STARTED])
async def test_an_agent_has_its_own_keys_and_nothing_else_of_ours(
    agent: str, launcher: AgentLauncher, tmp_path: Path
) -> None:
    found = await environment(launcher, agent, "local", tmp_path)
    assert beyond_the_ordinary(found) == own(agent)
    assert {name for name in OURS if name in found} == set()
    assert [name for name in OURS if f"value-of-{name}" in found.values()] == []
    assert found["HOME"].startswith(str(tmp_path / "data"))
    assert found["TMPDIR"].startswith(str(tmp_path / "data"))


@pytest.mark.parametrize("agent", [entry.name for entry in STARTED])
async def test_an_agent_of_another_workspace_has_no_key_of_ours(
    agent: str, launcher: AgentLauncher, tmp_path: Path
) -> None:
    found = await environment(launcher, agent, "wsp_other", tmp_path)
    assert beyond_the_ordinary(found) == set()
    assert [name for name in (*GIVEN, *OURS) if f"value-of-{name}" in found.values()] == []


def test_every_key_that_an_agent_takes_is_one_of_these() -> None:
    assert {name for entry in KNOWN for name in entry.credentials} == KEYS.keys()


@pytest.mark.parametrize("agent", ["codex", "codex-acp"])
async def test_what_codex_complains_of_has_no_colours(
    agent: str, launcher: AgentLauncher, tmp_path: Path
) -> None:
    """It is shown where a session ends, and kept: 0.166.0 writes its log with escape sequences otherwise."""
    assert (await environment(launcher, agent, "local", tmp_path))["NO_COLOR"] == "1"
