"""Puts blobs until it is killed, or until its disk is full, for real: the kernel refuses larger files.

argv: endless|full root. Prints one JSON object for each blob, or one that says what was seen.
"""

import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.store.blob_stores import signer

from legation.errors import LegationError
from legation.store.blobs.folder import CHUNK, FolderBlobs

LIMIT = CHUNK + 1000  # bytes a file may have: the second block of a blob does not fit


async def blocks(number: int) -> AsyncIterator[bytes]:
    for _ in range(3):
        yield bytes([number % 256]) * CHUNK


async def endless(blobs: FolderBlobs) -> None:
    number = 0
    while True:
        number += 1
        info = await blobs.put(f"ws_a/{number % 3}/{number}", blocks(number))
        sys.stdout.write(json.dumps({"key": info.key}) + "\n")
        sys.stdout.flush()


async def full(blobs: FolderBlobs, root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
    errors: list[LegationError] = []
    for data in (blocks(1), bytes(3 * CHUNK)):
        try:
            await blobs.put("ws_a/large", data)
        except LegationError as error:
            errors.append(error)
    incoming = [path.name for path in (root / ".incoming").iterdir()]
    await blobs.put("ws_a/small", b"still works")
    seen = {"codes": [error.code for error in errors], "messages": [error.message for error in errors]}
    json.dump({**seen, "incoming": incoming}, sys.stdout)


async def main() -> None:
    mode, folder = sys.argv[1:]
    root = Path(folder)
    blobs = FolderBlobs(root, signer())
    await (endless(blobs) if mode == "endless" else full(blobs, root))


asyncio.run(main())
