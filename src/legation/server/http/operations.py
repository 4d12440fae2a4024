"""An operation: one method of one path, with everything its handler's signature says.

A signature that cannot be served fails at once, where it is declared, never at the first request.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.responses import Response

from legation.errors import LegationError
from legation.server.http.access import Access
from legation.server.http.bodies import Body
from legation.server.http.call import Alias, Call, Header, Reply
from legation.server.http.parameters import REQUIRED, Parameter, Place

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[..., Awaitable[object]]

_PATH: Final = re.compile(r"/|(/([A-Za-z0-9._~-]+|\{[a-z_]+\}))+")
_BODYLESS: Final = frozenset({"GET", "DELETE"})
# JSON has no bound, the databases do: a larger number would fail there instead of here.
_INT64: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)


@dataclass(frozen=True, slots=True)
class Operation:
    handler: Handler
    method: Method
    path: str  # the template
    tag: str
    access: Access
    status: int  # of success
    errors: tuple[type[LegationError], ...]  # beyond those that every operation of its kind may answer with
    also: Mapping[int, object]  # other answers than success and problems, and their types
    media: str
    listed: bool
    name: str  # the operationId
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    takes: str | None  # the media type of a body that the handler reads itself, as it arrives
    answer: object  # the type of the success's body; None: there is none
    passes_through: bool  # the handler makes the whole Response itself
    any_query: bool  # it looks at none, so that none is wrong
    body_bytes: int = 0  # of its body, at least; the settings may allow more


def declare(
    handler: Handler,
    *,
    method: Method,
    path: str,
    tag: str,
    access: Access,
    status: int | None,
    errors: tuple[type[LegationError], ...],
    also: Mapping[int, object],
    media: str,
    listed: bool,
    takes: str | None = None,
    any_query: bool = False,
    body_bytes: int = 0,
) -> Operation:
    try:
        hints, parameters, body = _signature(handler, method, path)
        if takes is not None and (body is not None or method in _BODYLESS):
            raise _Refused("a body that the handler reads itself leaves none for `body`, and a GET has none")
        answer, passes_through = _answer(hints["return"])
        summary, description = _words(handler)
    except _Refused as error:
        raise TypeError(f"cannot declare {method} {path} ({handler.__qualname__}): {error}") from error
    return Operation(
        handler=handler,
        method=method,
        path=path,
        tag=tag,
        access=access,
        status=status or (204 if answer is None and not passes_through else 200),
        errors=errors,
        also=also,
        media=media,
        listed=listed,
        name=camel(handler.__name__),
        summary=summary,
        description=description,
        parameters=parameters,
        body=body,
        takes=takes,
        answer=answer,
        passes_through=passes_through,
        any_query=any_query,
        body_bytes=body_bytes,
    )


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class _Refused(Exception):
    pass


def _signature(
    handler: Handler, method: Method, path: str
) -> tuple[dict[str, object], tuple[Parameter, ...], Body | None]:
    if not _PATH.fullmatch(path):
        raise _Refused("write the path as /v1/things/{id}, with no slash at its end")
    if not inspect.iscoroutinefunction(handler):
        raise _Refused("make the handler an async function")
    hints, declared = _hints(handler), dict(inspect.signature(handler).parameters)
    first = next(iter(declared), "")
    if hints.get(first) is not Call:
        raise _Refused("let `call: Call` be the first parameter")
    del declared[first]
    in_path = re.findall(r"\{(\w+)\}", path)
    absent = [name for name in in_path if name not in declared]
    if absent:
        raise _Refused(f"add a parameter for {', '.join(absent)} of the path")
    body = None
    if (given := declared.pop("body", None)) is not None:
        body = _body(method, hints["body"], given.default)
    return hints, tuple(_parameter(each, hints[each.name], in_path) for each in declared.values()), body


def _hints(handler: Handler) -> dict[str, object]:
    try:
        hints = get_type_hints(handler, include_extras=True)
    except NameError as error:
        raise _Refused(f"{error}; import it at run time, not only for type checking") from error
    for name, each in inspect.signature(handler).parameters.items():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            raise _Refused(f"`{name}` must be a plain parameter")
        if name not in hints:
            raise _Refused(f"give `{name}` a type")
    if "return" not in hints:
        raise _Refused("say what it returns")
    return hints


def _body(method: Method, kind: object, default: object) -> Body:
    if method in _BODYLESS:
        raise _Refused(f"a {method} has no body; take query parameters")
    try:
        msgspec.json.schema(kind)
        return Body(kind, REQUIRED if default is inspect.Parameter.empty else default)
    except TypeError as error:
        raise _Refused(f"`body` cannot be read from JSON: {error}") from error


def _parameter(each: inspect.Parameter, kind: object, in_path: list[str]) -> Parameter:
    header = next((mark for mark in _marks(kind) if isinstance(mark, Header)), None)
    alias = next((mark.name for mark in _marks(kind) if isinstance(mark, Alias)), None)
    place: Place = "path" if each.name in in_path else "header" if header else "query"
    default = REQUIRED if each.default is inspect.Parameter.empty else each.default
    if place == "path" and default is not REQUIRED:
        raise _Refused(f"`{each.name}` is part of the path and can have no default")
    if alias is not None and place != "query":
        raise _Refused(f"`{each.name}` is not of the query and can have no second name")
    plain = _bounded(_without_none(_without_marks(kind)))
    if _without_none(kind) != kind and default is REQUIRED:
        raise _Refused(f"`{each.name}` may be None, so give it the default None")
    try:
        wire = header.name if header else _wire(each.name, place)
        return Parameter(each.name, place, wire, plain, default, alias)
    except TypeError as error:
        raise _Refused(f"`{each.name}` cannot be read from text: {error}") from error


def _wire(name: str, place: Place) -> str:
    return name if place == "path" else camel(name)


def _marks(kind: object) -> tuple[object, ...]:
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def _without_marks(kind: object) -> object:
    """Annotated[T, Header(...), Meta(...)] as msgspec takes it: without our own marks."""
    if get_origin(kind) is not Annotated:
        return kind
    inner, *marks = get_args(kind)
    kept = [mark for mark in marks if not isinstance(mark, Header | Alias)]
    return Annotated[(inner, *kept)] if kept else inner


def _without_none(kind: object) -> object:
    """Text is never None: absence is. Otherwise the text "null" would become None."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return Annotated[(_without_none(inner), *marks)]
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    return Union[tuple(each for each in get_args(kind) if each is not type(None))]  # noqa: UP007


def _bounded(kind: object) -> object:
    if kind is int:
        return Annotated[int, _INT64]
    return list[_bounded(get_args(kind)[0])] if get_origin(kind) is list else kind  # type: ignore[misc]


def _answer(kind: object) -> tuple[object, bool]:
    """The type of the body, and whether the handler makes the Response itself."""
    if get_origin(kind) is Reply:
        kind = get_args(kind)[0]
    if kind is None or kind is type(None):
        return None, False
    if isinstance(kind, type) and issubclass(kind, Response):
        return None, True
    try:
        msgspec.json.schema(kind)
    except TypeError as error:
        raise _Refused(f"what it returns cannot be written as JSON: {error}") from error
    return kind, False


def _words(handler: Handler) -> tuple[str, str]:
    words = inspect.getdoc(handler)
    if not words:
        raise _Refused("give it a docstring: one sentence, then what else there is to say")
    summary, _, description = words.partition("\n\n")
    return " ".join(summary.split()), description.strip()
