"""The real Claude Code at work, spoken to by its own protocol: a session of it, and the model that it believes in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.agents.real_claude_acp import QUIET, ChosenApprover, RealAgent
from tests.host.rig import definition_of, rig

from legation.host.options import AgentDefinition
from legation.host.requests.handlers import ApproveAll
from legation.proc import Command, child_environment
from legation.testing.model import ScriptedModel

# Real models find the tools that are not declared at once; the scripted one calls only what it was told of.
ALL_TOOLS = {"ENABLE_TOOL_SEARCH": "false"}


def definition(
    program: str, place: Path, model: ScriptedModel, env: dict[str, str] | None = None
) -> AgentDefinition:
    passed = {**QUIET, **ALL_TOOLS, "ANTHROPIC_BASE_URL": model.url, **model.proxy_variables(), **(env or {})}
    environment = child_environment(passed, home=place / "home", tmp=place / "tmp")
    return replace(definition_of(Command((program,), place / "work", environment, "claude")), driver="claude")


@asynccontextmanager
async def real_claude(
    program: str, place: Path, *, env: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[RealAgent]:
    """`options` are the host's."""
    chooser = ChosenApprover(options.pop("approver", ApproveAll()))
    async with ScriptedModel() as model, rig(place, approver=chooser, **options) as made:
        defined = definition(program, place, model, env)
        session = await made.open((await made.host.spawn_agent(defined)).agent_id)
        yield RealAgent(made, model, defined, session, chooser)
