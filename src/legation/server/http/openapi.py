"""The OpenAPI 3.1 document, made from the operations and the types of their signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from legation.errors import (
    Code,
    Forbidden,
    InternalError,
    InvalidParams,
    LegationError,
    NotFound,
    RateLimited,
    TooLarge,
    Unauthenticated,
    UnsupportedMedia,
    problem,
)
from legation.server.http.request import Parameter
from legation.server.http.routes import Operation

PROBLEM_MEDIA: Final = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457). `code` is one of a closed set; `data.path` and `data.expected` say what to correct."""

    type: str
    title: str
    status: int
    detail: str
    code: Code
    instance: str
    data: dict[str, Any] | None = None


Json = dict[str, object]

_REF: Final = "#/components/schemas/{name}"
_DESCRIPTION: Final = (
    "A home and a rulebook for coding agents. Every error is a problem (RFC 9457) with a `code` out of a closed "
    "set; every answer has a `Request-Id`. Lists come in pages: `next` goes back as `?after=`."
)
_SECURITY: Final[Json] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API token: `Authorization: Bearer …`. `Authorization: Token …` means the same.",
    },
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "An API token as the password, any user name.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "legation_session",
        "description": "Set by signing in with a browser.",
    },
}
_REQUEST_ID: Final[Json] = {
    "description": "The id of this request: the caller's `X-Request-Id` if it sent one, else a new one.",
    "schema": {"type": "string"},
}
_HEADERS: Final[Json] = {"Request-Id": {"$ref": "#/components/headers/Request-Id"}}


def openapi(operations: Iterable[Operation], *, version: str) -> Json:
    listed = [each for each in operations if each.listed]
    schemas = _Schemas(listed)
    paths: dict[str, Json] = {}
    for each in listed:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Legation", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in listed)],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": {"Request-Id": _REQUEST_ID},
            "securitySchemes": _SECURITY,
        },
    }


def errors_of(operation: Operation) -> list[type[LegationError]]:
    """List every error it may answer with, those that come with its kind included."""
    found: list[type[LegationError]] = [InvalidParams]
    if not operation.access.open:
        found += [Unauthenticated, Forbidden, RateLimited]
    if any(each.place == "path" for each in operation.contract.parameters):
        found.append(NotFound)
    if operation.contract.body is not None or operation.takes is not None:
        found += [TooLarge, UnsupportedMedia]
    return list(dict.fromkeys([*found, *operation.errors, InternalError]))


class _Schemas:
    """The schema of every type that the operations name; shared ones are components."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        kinds: list[object] = [Problem]
        for each in operations:
            kinds += [parameter.type for parameter in each.contract.parameters]
            kinds += [each.contract.body.type] if each.contract.body else []
            kinds += [each.contract.answer] if each.contract.answer is not None else []
            kinds += each.also.values()
        found, self.components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self._found = list(zip(kinds, found, strict=True))

    def of(self, kind: object) -> Json:
        # By identity: Annotated types with unhashable marks are no keys.
        return dict(next(schema for known, schema in self._found if known is kind))


def check_names(operations: Iterable[Operation]) -> None:
    """Refuse two operations of one name."""
    seen: dict[str, Operation] = {}
    for each in operations:
        if not each.listed:
            continue
        other = seen.setdefault(each.name, each)
        if other is not each:
            raise TypeError(
                f"cannot name both {other.method} {other.path} and {each.method} {each.path} {each.name}: "
                "rename one handler"
            )


def _operation(operation: Operation, schemas: _Schemas) -> Json:
    found: Json = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.contract.summary,
    }
    description = _description(operation)
    if description:
        found["description"] = description
    found["security"] = _security(operation)
    if operation.contract.parameters:
        found["parameters"] = [_parameter(each, schemas) for each in operation.contract.parameters]
    if operation.contract.body is not None:
        content = {"application/json": {"schema": schemas.of(operation.contract.body.type)}}
        found["requestBody"] = {"required": operation.contract.body.required, "content": content}
    elif operation.takes is not None:
        schema: Json = {"type": "string", "format": "binary"}
        found["requestBody"] = {"required": True, "content": {operation.takes: {"schema": schema}}}
    found["responses"] = _responses(operation, schemas)
    return found


def _description(operation: Operation) -> str:
    scope = operation.access.scope
    return "\n\n".join(
        filter(None, [operation.contract.description, scope and f"Needs the scope `{scope}`."])
    )


def _security(operation: Operation) -> list[Json]:
    if operation.access.open:
        return []
    scopes = [operation.access.scope] if operation.access.scope else []
    return [{name: scopes} for name in _SECURITY]


def _parameter(parameter: Parameter, schemas: _Schemas) -> Json:
    schema = _without_nul(schemas.of(parameter.type))
    if not parameter.required and parameter.default is not None:
        schema["default"] = msgspec.to_builtins(parameter.default)
    return {
        "name": parameter.wire,
        "in": parameter.place,
        "required": parameter.required,
        "schema": schema,
    }


def _without_nul(schema: Json) -> Json:
    # Text of a parameter never holds NUL, which a database would refuse.
    if schema.get("type") == "string":
        return {"pattern": "^[^\\u0000]*$", **schema}
    items = schema.get("items")
    return {**schema, "items": _without_nul(items)} if isinstance(items, dict) else schema


def _responses(operation: Operation, schemas: _Schemas) -> Json:
    success: Json = {"description": HTTPStatus(operation.status).phrase, "headers": _HEADERS}
    if operation.contract.answer is not None:
        success["content"] = {operation.media: {"schema": schemas.of(operation.contract.answer)}}
    elif operation.contract.passes_through and operation.status == HTTPStatus.OK:
        schema: Json = {} if operation.media == "application/json" else {"type": "string"}
        success["content"] = {operation.media: {"schema": schema}}
    found: Json = {str(operation.status): success}
    for status, kind in operation.also.items():
        content = {operation.media: {"schema": schemas.of(kind)}}
        found[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "headers": _HEADERS,
            "content": content,
        }
    by_status: dict[int, list[type[LegationError]]] = {}
    for error in errors_of(operation):
        by_status.setdefault(error("").status.http, []).append(error)
    for status in sorted(by_status):
        found[str(status)] = _merged(found.get(str(status)), _problem(by_status[status], schemas))
    return found


def _merged(answer: object, problem: Json) -> Json:
    # One status may be an answer or a problem, told apart by the content type.
    if not isinstance(answer, dict):
        return problem
    return {**problem, "content": {**answer["content"], **problem["content"]}}  # type: ignore[dict-item]


def _problem(errors: list[type[LegationError]], schemas: _Schemas) -> Json:
    meanings = " ".join(f"`{each.code}`: {each.__doc__}" for each in errors)
    content: Json = {"schema": schemas.of(Problem)}
    if errors == [InvalidParams]:
        content["example"] = _example()
    return {"description": meanings, "headers": _HEADERS, "content": {PROBLEM_MEDIA: content}}


def _example() -> Json:
    data = {"path": "query.limit", "expected": "integer >= 1"}
    words = "cannot use the request: expected integer >= 1 at query.limit; correct it and send it again"
    request = "urn:legation:request:req_01jd3v9k2m8q4x7t5w6y0z1abc"
    return {**problem(InvalidParams(words, data)), "instance": request}
