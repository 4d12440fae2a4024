"""`/v1/trust`: folders in which an agent's own configuration counts. It takes a person to trust one. See docs/trust.md.

INV-U6  There is no trust without its row in the audit log: the row is written first. What is taken away is taken away
        before it is written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from legation.errors import Forbidden, NotFound
from legation.server.http.routes import Call, Routes, needs
from legation.store.audit import names_of, record
from legation.store.trust import TrustedFolder, TrustedFolders
from legation.wire.api.identity import NewTrust, TrustView
from legation.wire.api.shape import Page
from legation.wire.principal import Principal

routes = Routes(tag="trust")

_USER: Final = "user:"  # how a person stands in the file


@routes.get("/v1/trust", access=needs("read"))
async def list_trusted(call: Call) -> Page[TrustView]:
    """Every folder of this machine that the workspace trusts, by path."""
    found = await asyncio.to_thread(_folders(call).all)
    names = await _names(call, found)
    return Page(items=await asyncio.to_thread(lambda: [_view(each, names) for each in found]))


@routes.post("/v1/trust", access=needs("approve"), status=201, errors=(NotFound,))
async def trust_folder(call: Call, body: NewTrust) -> TrustView:
    """Let the configuration for agents in a folder count: hooks, allow rules, MCP servers, plug-ins. It takes a person.

    It counts for agents that are started from then on, in the folder and in all beneath it. One that is trusted stays."""
    _must_be_person(call.principal)
    services, now = call.services, call.services.clock.now_ms()
    by, folders = f"{call.principal.kind}:{call.principal.id}", _folders(call)
    path = str(await services.files.folder(body.folder))
    new = await asyncio.to_thread(folders.checked, path, by=by, now_ms=now)
    await services.database.transact(record, call.principal, "folder.trusted", new.id, {}, now)
    added = await asyncio.to_thread(folders.add, new)
    names = await _names(call, [added])
    return await asyncio.to_thread(_view, added, names)


@routes.delete("/v1/trust/{trust}", access=needs("approve"), errors=(NotFound,))
async def untrust_folder(call: Call, trust: str) -> None:
    """Trust a folder no more. Agents that were started before keep what they have read. It takes a person."""
    _must_be_person(call.principal)
    services = call.services
    removed = await asyncio.to_thread(_folders(call).remove, trust)
    now = services.clock.now_ms()
    await services.database.transact(record, call.principal, "folder.untrusted", removed.id, {}, now)


def _folders(call: Call) -> TrustedFolders:
    return call.services.hosts.trusted(call.principal.workspace)


async def _names(call: Call, folders: Iterable[TrustedFolder]) -> dict[str, str]:
    people = [each.by.removeprefix(_USER) for each in folders if each.by.startswith(_USER)]
    return await call.services.database.read(names_of, people)


def _view(folder: TrustedFolder, names: Mapping[str, str]) -> TrustView:
    return TrustView(
        id=folder.id,
        folder=folder.path,
        state=folder.state,
        trusted_by=folder.by,
        created_at=folder.at,
        trusted_by_name=names.get(folder.by.removeprefix(_USER)),
    )


def _must_be_person(principal: Principal) -> None:
    if principal.level < 2:
        raise Forbidden(
            "cannot change what is trusted with this credential: it takes a person who may approve"
        )
