"""The driver in a host, with a child that plays a recording; and somebody who fills in forms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.host.rig import Rig, definition_of, rig

from legation.host.options import AgentDefinition
from legation.proc import Command
from legation.testing.replay import Replay
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse

RECORDINGS = Path(__file__).with_name("recordings")
VERSION = RECORDINGS / "version.jsonl"  # a driver asks for it before anything else


@dataclass
class Person:
    """Fills in every form alike."""

    answer: CreateElicitationResponse
    asked: list[CreateElicitationRequest] = field(default_factory=list)
    modes: frozenset[str] = frozenset(("form",))

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        self.asked.append(request)
        return self.answer


def definition(place: Path) -> AgentDefinition:
    return replace(definition_of(Command(("claude",), place / "work", {}, "claude")), driver="claude")


@asynccontextmanager
async def playing(place: Path, *recordings: Path, **options: Any) -> AsyncIterator[tuple[Rig, Replay, str]]:
    """And the id of the agent. `options` are the host's."""
    replay = Replay(*recordings, places={"/w": str(place / "work")})
    async with rig(place, launcher=replay, **options) as made:
        yield made, replay, (await made.host.spawn_agent(definition(place))).agent_id
    replay.check()
