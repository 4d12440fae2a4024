"""What a client sent, read one field at a time; anything amiss is -32602 with the field's name."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from legation.agents.rehearsal.connection import INVALID_PARAMS, Json, RpcError

SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
BLOCK_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "resource_link": ("name", "uri"),
    "resource": (),
}
SERVER_FIELDS: Mapping[str, tuple[tuple[str, type], ...]] = {
    "stdio": (("name", str), ("command", str), ("args", list), ("env", list)),
    "http": (("name", str), ("url", str), ("headers", list)),
}


def refuse(field: str, wanted: str) -> NoReturn:
    raise RpcError(INVALID_PARAMS, f"cannot read params: {field} must be {wanted}")


def text(params: Json, field: str) -> str:
    value = params.get(field)
    return value if isinstance(value, str) else refuse(field, "a string")


def optional_text(params: Json, field: str) -> str | None:
    return None if params.get(field) is None else text(params, field)


def whole_number(params: Json, field: str) -> int:
    value = params.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 65535:
        refuse(field, "a whole number from 0 to 65535")
    return value


def session_id(params: Json) -> str:
    value = text(params, "sessionId")
    return value if SESSION_ID.match(value) else refuse("sessionId", "an id that this agent gave out")


def folder(params: Json) -> Path:
    path = Path(text(params, "cwd"))
    if not path.is_absolute():
        refuse("cwd", "an absolute path")
    if not path.is_dir():
        refuse("cwd", "an existing folder")
    if params.get("additionalDirectories"):
        refuse("additionalDirectories", "empty: this agent does not offer them")
    return path


def mcp_servers(params: Json, *, required: bool = True) -> None:
    if "mcpServers" not in params and required:
        refuse("mcpServers", "a list (it may be empty)")
    for server in items(params.get("mcpServers") or [], "mcpServers"):
        transport = str(server.get("type", "stdio"))
        for name, kind in SERVER_FIELDS.get(transport) or refuse("mcpServers", "stdio or http servers"):
            if not isinstance(server.get(name), kind):
                refuse(f"mcpServers[].{name}", "given for this kind of server")


def prompt(params: Json) -> list[Json]:
    blocks = items(params.get("prompt"), "prompt")
    if not blocks:
        refuse("prompt", "a list of at least one content block")
    for block in blocks:
        kind = block.get("type")
        if kind not in BLOCK_FIELDS:
            refuse("prompt[].type", "one of " + ", ".join(BLOCK_FIELDS))
        for name in BLOCK_FIELDS[str(kind)]:
            if not isinstance(block.get(name), str):
                refuse(f"prompt[].{name}", "a string")
    return blocks


def items(value: object, field: str) -> list[Json]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        refuse(field, "a list")
    if not all(isinstance(item, Mapping) for item in value):
        refuse(field, "a list of objects")
    return list(value)


def inner(value: object, *path: str) -> object:
    """The value at a path of keys, or None where any of them is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
