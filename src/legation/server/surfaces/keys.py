"""`POST /v1/keys/rotate`: a new vault key, and everything wrapped anew under it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from legation.errors import Conflict
from legation.server.http.access import needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.services import Services
from legation.store.audit import record
from legation.store.keychecks import check_keys
from legation.store.keyfile import drop_older, open_file, rotate_file
from legation.store.vault import keys_in_use
from legation.wire.api.server import KeysRotated

routes = Routes(tag="server")


@routes.post("/v1/keys/rotate", access=needs("instance"), errors=(Conflict,))
async def rotate_keys(call: Call) -> KeysRotated:
    """Seal with a new vault key from now on, re-wrap what is sealed, and forget the old key.

    Where the key is a setting it is changed there, `new,old`, and this re-wraps what the old one sealed. It can be
    broken off and called again at any point. Backups made before need the old key.
    """
    services = call.services
    if services.rotating.locked():
        raise Conflict("cannot rotate the keys now: a rotation is under way; wait for that")
    async with services.rotating:
        count = await (_rotate_file(services) if services.settings.vault_key is None else _rewrap(services))
    key_id = services.sealer.current_key_id
    await services.database.transact(
        record,
        call.principal,
        "keys.rotated",
        "vault",
        {"key": key_id, "rewrapped": count},
        services.clock.now_ms(),
    )
    return KeysRotated(key_id=key_id, rewrapped=count)


async def _rotate_file(services: Services) -> int:
    await asyncio.to_thread(rotate_file, services.keys_file)
    ring = (await asyncio.to_thread(open_file, services.keys_file)).vault
    await check_keys(services.database, replace(services.keys, vault=ring), services.clock.now_ms())
    services.sealer.use(ring)
    count = await _rewrap(services)
    await asyncio.to_thread(drop_older, services.keys_file)
    return count


async def _rewrap(services: Services) -> int:
    count = await services.vault.rewrap_all()
    left = {*await services.database.transact(keys_in_use)} - {services.sealer.current_key_id}
    if left:
        raise Conflict(
            f"cannot forget key {', '.join(sorted(left))}: another server still seals with it; restart that one with the "
            "new key, then rotate again"
        )
    return count
