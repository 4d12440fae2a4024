"""A host whose permissions go through a real door: policies in a file, a database in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.approvals import doors
from tests.approvals.installation import open_installation
from tests.host.rig import Rig, rig
from tests.store.database.databases import Either

from legation.host.requests.door_approver import DoorApprover
from legation.store.database.sqlite import MemoryDatabase
from legation.wire.principal import Principal

HOST = Principal(kind="process", id="host", workspace="local", scopes=frozenset(), level=0)

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: runs, kind: execute, action: allow}
  - {id: edits, kind: edit, action: supervisor, when: {paths: {under: $WORKSPACE}}}
  - {id: rest, action: deny, message: Leave it.}
"""


@dataclass
class AtADoor:
    made: Rig
    door: doors.Rig


@asynccontextmanager
async def door_in_memory(place: Path, policy: str = POLICY, **habits: Any) -> AsyncIterator[doors.Rig]:
    async with MemoryDatabase() as database:
        installation = await open_installation(cast(Either, database))
        async with doors.open_door(installation, place, policy, **habits) as door:
            yield door


@asynccontextmanager
async def at_a_door(place: Path, policy: str = POLICY, **options: Any) -> AsyncIterator[AtADoor]:
    async with (
        door_in_memory(place, policy) as door,
        rig(place, approver=DoorApprover(door.door, HOST), **options) as made,
    ):
        yield AtADoor(made, door)
