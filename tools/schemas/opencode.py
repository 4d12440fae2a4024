"""OpenCode: the OpenAPI document that its own server shows, started on loopback with a password.

Every operation is listed. What they take and give is kept for those that a driver of sessions uses, and for events.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from legation.errors import AgentError, TimedOut
from tools.schemas.expression import NULL, Field, Name, Object, Type, reached, union
from tools.schemas.inventory import Inventory, inventory
from tools.schemas.jsonschema import clean, type_of, types_of
from tools.schemas.places import ANSWER_LIMIT, AskedProgram, Places, asked_program

PROGRAMS: Final = ("opencode-linux-*/bin/opencode",)
OPERATIONS: Final = "operations"
_USER: Final = "opencode"
_METHODS: Final = ("get", "put", "post", "delete", "patch")
_USED: Final = ("/session", "/permission", "/question", "/event", "/global/health", "/agent")
_USED_TOO: Final = ("/config/providers", "/mcp")
# Events of the protocol to come, which is sent besides the present one: many, and another with every release.
_LEFT_OUT: Final = ("EventSessionNext",)
_QUIET: Final = dict.fromkeys(
    [
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_SHARE",
    ],
    "1",
)


def find(places: Places) -> Path | None:
    return places.program(PROGRAMS, "opencode")


async def extract(program: Path) -> Inventory:
    password = secrets.token_urlsafe()
    async with asked_program(
        "opencode", program, {**_QUIET, "OPENCODE_SERVER_PASSWORD": password}
    ) as opencode:
        version = (await opencode.said("--version")).split()[-1]
        document = await _document(opencode, password)
    return inventory("opencode", version, "opencode-ai: opencode serve, GET /doc", select(document))


async def _document(opencode: AskedProgram, password: str) -> Any:
    async with opencode.running("serve", "--port", "0", "--hostname", "127.0.0.1") as child:
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                async for lines in child.lines():
                    said = re.search(rb"listening on http://(\S+)", b"\n".join(lines))
                    if said:
                        return await asyncio.to_thread(_get, said[1].decode(), password)
        except TimeoutError:
            raise TimedOut(
                f"cannot read the schema of opencode: its server did not start within {ANSWER_LIMIT:g} s; try again"
            ) from None
    raise AgentError(
        "cannot read the schema of opencode: its server ended; see whether `opencode serve` runs"
    )


def _get(host: str, password: str) -> Any:
    at = urlsplit(f"//{host}")
    connection = http.client.HTTPConnection(at.hostname or "127.0.0.1", at.port, timeout=ANSWER_LIMIT)
    pair = base64.b64encode(f"{_USER}:{password}".encode()).decode()
    try:
        connection.request("GET", "/doc", headers={"Authorization": f"Basic {pair}"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise AgentError(f"cannot read the schema of opencode: /doc answers {answer.status}; report it")
        return msgspec.json.decode(answer.read())
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise AgentError(f"cannot read the schema of opencode: {type(error).__name__}; try again") from None
    finally:
        connection.close()


def select(document: Mapping[str, Any]) -> dict[str, Type]:
    types = types_of(document["components"]["schemas"])
    listed: dict[str, Field] = {}
    used: dict[str, Type] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                name = clean(operations[method].get("operationId") or f"{method}_{path}")
                listed[f"{method.upper()} {path}"] = Field(Name(name), required=True)
                if path.startswith((*_USED, *_USED_TOO)):
                    used[name] = _operation(operations[method])
    return {**reached({**types, **used}, [*used, "Event"], without=_LEFT_OUT), OPERATIONS: Object(listed)}


def _operation(operation: Mapping[str, Any]) -> Type:
    fields = {
        f"{each['in']}:{each['name']}": Field(type_of(each.get("schema", True)), bool(each.get("required")))
        for each in operation.get("parameters", ())
    }
    if "requestBody" in operation:
        body = operation["requestBody"]
        fields["body"] = Field(_content(body), bool(body.get("required")))
    for status, answer in operation.get("responses", {}).items():
        if status.startswith("2"):
            fields[f"answer:{status}"] = Field(_content(answer), required=True)
    return Object(fields)


def _content(part: Mapping[str, Any]) -> Type:
    found = [type_of(each["schema"]) for each in part.get("content", {}).values() if "schema" in each]
    return union(found) if found else NULL
