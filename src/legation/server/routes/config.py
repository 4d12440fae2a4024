"""`/v1/config`: MCP servers and skills by folder, in the files in which sandbox-agent 0.4 keeps them. See docs/fs.md.

They are kept and given back. As there, no session reads them: what an agent may write into its own folder must not decide what
the next one is started with. Give `mcp` and `skills` with a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from legation.errors import Conflict, NotFound, StorageFailed, TooLarge
from legation.server.fs.operations import AtomicFile, RegularFile
from legation.server.fs.paths import Confinement
from legation.server.http.routes import Call, Routes, needs
from legation.wire.api.fs import FilePath
from legation.wire.api.sessions import LocalMcp, RemoteMcp, Skills

ACCESS: Final = needs("operate")
FOLDER: Final = ".sandbox-agent"
MCP: Final = "mcp.json"
SKILLS: Final = "skills.json"
MOST_BYTES: Final = 4 * 1024 * 1024  # of one file

T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Entries = dict[str, msgspec.Raw]
McpEntry = LocalMcp | RemoteMcp

routes = Routes(tag="config", tolerant=True)
# Each change reads a file and replaces it: two at once would lose one.
_alone: Final = asyncio.Lock()
_decode: Final = msgspec.json.Decoder(Entries).decode


@routes.get("/v1/config/mcp", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def read_mcp_config(call: Call, directory: FilePath, mcp_name: Name) -> McpEntry:
    """One MCP server of a folder."""
    return await _read(call, directory, MCP, mcp_name, msgspec.json.Decoder(McpEntry).decode)


@routes.put("/v1/config/mcp", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def set_mcp_config(call: Call, directory: FilePath, mcp_name: Name, body: McpEntry) -> None:
    """Keep an MCP server for a folder. No session takes it from there."""
    await _change(call, directory, MCP, mcp_name, body)


@routes.delete("/v1/config/mcp", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def delete_mcp_config(call: Call, directory: FilePath, mcp_name: Name) -> None:
    """Forget an MCP server of a folder. Twice is as good as once."""
    await _change(call, directory, MCP, mcp_name, None)


@routes.get("/v1/config/skills", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def read_skills_config(call: Call, directory: FilePath, skill_name: Name) -> Skills:
    """One set of skills of a folder."""
    return await _read(call, directory, SKILLS, skill_name, msgspec.json.Decoder(Skills).decode)


@routes.put("/v1/config/skills", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def set_skills_config(call: Call, directory: FilePath, skill_name: Name, body: Skills) -> None:
    """Keep a set of skills for a folder. No session takes it from there."""
    await _change(call, directory, SKILLS, skill_name, body)


@routes.delete("/v1/config/skills", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def delete_skills_config(call: Call, directory: FilePath, skill_name: Name) -> None:
    """Forget a set of skills of a folder. Twice is as good as once."""
    await _change(call, directory, SKILLS, skill_name, None)


async def _read(call: Call, directory: str, file: str, name: str, decode: Callable[[bytes], T]) -> T:
    where, path = await _place(call, directory, file)
    found = (await call.services.files.run(_entries, where, path)).get(name)
    if found is None:
        raise NotFound(f"cannot find that entry in {path}; set it first")
    try:
        return decode(bytes(found))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _no_entries(path) from None


async def _change(call: Call, directory: str, file: str, name: str, value: McpEntry | Skills | None) -> None:
    where, path = await _place(call, directory, file)
    async with _alone:
        await call.services.files.run(_set, where, path, name, value)


async def _place(call: Call, directory: str, file: str) -> tuple[Confinement, str]:
    folder = await call.services.files.folder(directory)
    return call.services.files.config_of(folder / FOLDER), str(folder / FOLDER / "config" / file)


def _entries(where: Confinement, path: str) -> Entries:
    try:
        file = RegularFile(where, path)
    except NotFound:
        return {}
    try:
        if file.size > MOST_BYTES:
            raise TooLarge(f"cannot read {path}: it has more than {MOST_BYTES} bytes; make it shorter")
        text = b"".join(iter(file.read, b""))
    finally:
        file.close()
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _no_entries(path) from None


def _set(where: Confinement, path: str, name: str, value: McpEntry | Skills | None) -> None:
    entries = _entries(where, path)
    if value is None and name not in entries:
        return
    entries.pop(name, None)
    if value is not None:
        entries[name] = msgspec.Raw(msgspec.json.encode(value))
    text = msgspec.json.format(msgspec.json.encode(entries, order="sorted"))
    if len(text) > MOST_BYTES:
        raise TooLarge(f"cannot keep more than {MOST_BYTES} bytes in {path}; delete some entries first")
    written = AtomicFile(where, path)
    try:
        written.start()
        written.write(text)
        written.place()
    finally:
        written.close()


def _no_entries(path: str) -> Conflict:
    return Conflict(f"cannot read {path}: it is no JSON object of such entries; correct or delete it")
