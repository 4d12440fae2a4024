"""Codex: the schema that its own program writes of its app server, without experimental parts.

Every method is listed. Of the methods that a driver of sessions has no use for (plug-ins, market places, the user's
account), what they take and give is left out: it changes with every release, and would be most of the inventory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tools.schemas.expression import Field, Name, Object, Type, names, reached
from tools.schemas.inventory import Inventory, definitions, inventory
from tools.schemas.jsonschema import type_of, types_of
from tools.schemas.places import AskedProgram, Places, asked_program

PROGRAM: Final = "@openai/codex-linux-*/vendor/*/bin/codex"
_BUNDLE: Final = "codex_app_server_protocol.schemas.json"
_SOURCE: Final = "@openai/codex: codex app-server generate-json-schema"
_LOOKED_AHEAD: Final = ("TurnStartParams", "CommandExecutionRequestApprovalParams")
_MESSAGES: Final = ("ClientRequest", "ClientNotification", "ServerRequest", "ServerNotification")
_USED: Final = ("initialize", "thread/", "turn/", "item/", "model/list", "error", "warning", "serverRequest/")
_USED_TOO: Final = ("mcpServer/elicitation/", "account/rateLimits/updated", "review/start")
_UNUSED: Final = "thread/realtime/"  # speech


def find(places: Places) -> Path | None:
    return places.program([PROGRAM], "codex")


async def extract(program: Path) -> Inventory:
    async with asked_program("codex", program) as codex:
        types = select(await _schemas(codex))
        return inventory("codex", await _version(codex), f"{_SOURCE} ({_BUNDLE})", types)


async def extract_experimental(program: Path) -> Inventory:
    """What is otherwise for a client that asks for `experimentalApi`: plan mode and the decisions to choose from."""
    async with asked_program("codex", program) as codex:
        stable = definitions(select(await _schemas(codex)))
        types = reached(types_of(await _schemas(codex, "--experimental")), _LOOKED_AHEAD)
        source = f"{_SOURCE} --experimental ({_BUNDLE})"
        full = inventory("codex-experimental", await _version(codex), source, types)
    own = {name: each for name, each in full.definitions.items() if stable.get(name) != each}
    return replace(full, definitions=own)


async def _version(codex: AskedProgram) -> str:
    return (await codex.said("--version")).split()[-1]


async def _schemas(codex: AskedProgram, *flags: str) -> dict[str, Any]:
    out = codex.folder / f"schema{''.join(flags)}"
    await codex.said("app-server", "generate-json-schema", *flags, "--out", str(out))
    found: dict[str, Any] = msgspec.json.decode((out / _BUNDLE).read_bytes())["definitions"]
    return found


def select(schemas: dict[str, Any]) -> dict[str, Type]:
    types = types_of(schemas)
    messages = {name: _by_method(schemas[name]) for name in _MESSAGES}
    params = [
        name
        for message in messages.values()
        for method, field in message.fields.items()
        if method.startswith((*_USED, *_USED_TOO)) and not method.startswith(_UNUSED)
        for name in names(field.type)
    ]
    # Nothing in the schema says which answer belongs to which request but the name.
    answers = [f"{each.removesuffix('Params')}Response" for each in params if each.endswith("Params")]
    return {**reached(types, [*params, *answers]), **messages}


def _by_method(message: dict[str, Any]) -> Object:
    """Its variants differ in `method` and `params` only."""
    found: dict[str, Field] = {}
    for variant in message["oneOf"]:
        of = variant["properties"]
        params = type_of(of["params"]) if "params" in of else Name("null")
        found[of["method"]["enum"][0]] = Field(params, required=True)
    return Object(found)
