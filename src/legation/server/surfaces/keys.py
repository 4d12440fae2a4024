"""`POST /v1/keys/rotate`: a new vault key, and everything wrapped anew under it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from legation.errors import Conflict
from legation.server.http.access import needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.store.audit import record
from legation.store.keychecks import check_keys
from legation.store.keyfile import drop_older, rotate_file
from legation.store.keys import load_keys
from legation.wire.api.server import KeysRotated

routes = Routes(tag="server")


@routes.post("/v1/keys/rotate", access=needs("instance"), errors=(Conflict,))
async def rotate_keys(call: Call) -> KeysRotated:
    """Seal with a new vault key from now on, re-wrap what is sealed, and forget the old key.

    Where the key is a setting it is changed there, `new,old`, and this re-wraps what the old one sealed. It can be
    broken off and called again at any point.
    """
    services, settings = call.services, call.services.settings
    now, file = services.clock.now_ms(), services.keys_file
    if settings.vault_key is None:
        await asyncio.to_thread(rotate_file, file)
        ring = (await asyncio.to_thread(load_keys, file, {})).vault
        await check_keys(services.database, replace(services.keys, vault=ring), now)
        services.sealer.use(ring)
    count = await services.vault.rewrap_all()
    if settings.vault_key is None:
        await asyncio.to_thread(drop_older, file)
    key_id = services.sealer.current_key_id
    await services.database.transact(
        record, call.principal, "keys.rotated", "vault", {"key": key_id, "rewrapped": count}, now
    )
    return KeysRotated(key_id=key_id, rewrapped=count)
