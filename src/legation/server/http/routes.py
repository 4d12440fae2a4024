'''Routes: the signature of the handler is the contract, read when it is first needed.

    routes = Routes(tag="tokens")

    @routes.post("/v1/tokens", access=needs("manage"), status=201, errors=(Conflict,))
    async def create_token(call: Call, body: NewToken) -> TokenCreated:
        """The summary, in one sentence.

        The description."""

A name in braces is a path parameter, `body` is the body, `Annotated[..., Header("Name")]` a header, and every
other parameter is one of the query, in camelCase on the wire; a list type takes a repeated one. Returning None
means 204. `Annotated[..., Alias("snake_name")]` gives one of the query a second name. A Starlette `Response` passes
through as it is; say its type with `media`.
'''

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Final,
    Generic,
    Literal,
    Required,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from legation.errors import Forbidden, InvalidParams, LegationError
from legation.server.http.request import REQUIRED, JsonBody, Parameter, Place, decode_segment
from legation.wire.principal import SCOPES, Principal, Scope

if TYPE_CHECKING:
    from legation.server.instance import Services

OPERATION: Final = "legation.operation"  # where the scope of a request has the operation that it calls
PEOPLE: Final = frozenset({"user", "process"})  # kinds of principals that act as the person behind them
NOBODY: Final = Principal(kind="nobody", id="nobody", workspace="", scopes=frozenset(), level=0)

_PATH: Final = re.compile(r"/|(/([A-Za-z0-9._~:-]+|\{[a-z_]+\}))+")
_BODYLESS: Final = frozenset({"GET", "DELETE"})
# JSON has no bound, the databases do: a larger number would fail there instead of here.
_INT64: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)


Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[..., Awaitable[object]]
Authenticate = Callable[[Request], Awaitable[Principal]]
T = TypeVar("T")
F = TypeVar("F", bound=Handler)


class Access(msgspec.Struct, frozen=True):
    """Access to a route. `open`: no credential is looked at. `scope` None: any valid credential will do.

    `person`: a session or the process, for what is about the caller's own sessions. A token acts for itself alone.
    `may_decide`: what is sent may also decide what an agent may do, which the route checks itself."""

    open: bool
    scope: Scope | None = None
    person: bool = False
    may_decide: bool = False

    def check(self, principal: Principal) -> None:
        if self.person and principal.kind not in PEOPLE:
            raise Forbidden("cannot do this with a token, which has no session; sign in, or revoke the token")
        if self.scope is not None and self.scope not in principal.scopes:
            raise Forbidden(
                f'cannot do this without the scope "{self.scope}"; use a credential that has it',
                {"scope": self.scope},
            )


OPEN: Final = Access(open=True)
SIGNED_IN: Final = Access(open=False)
A_PERSON: Final = Access(open=False, person=True)


def needs(scope: Scope, *, may_decide: bool = False) -> Access:
    if scope not in SCOPES:
        raise TypeError(
            f"cannot declare a route that needs {scope!r}: choose from {', '.join(sorted(SCOPES))}"
        )
    return Access(open=False, scope=scope, may_decide=may_decide)


class Call(msgspec.Struct, frozen=True):
    """One request, as a handler sees it."""

    principal: Principal  # NOBODY on open routes, whatever credential came with the request
    request_id: str
    request: Request
    services: Services
    authenticate: Authenticate  # for what outlives the request's beginning, to ask again


class RouteReply(msgspec.Struct, Generic[T], frozen=True):
    """An answer that needs a header, or another status than its route's."""

    body: T
    status: int | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class Header(msgspec.Struct, frozen=True):
    """Mark a parameter that is read from a header: `Annotated[str | None, Header("Last-Event-ID")] = None`."""

    name: str


class Alias(msgspec.Struct, frozen=True):
    """Mark a parameter of the query that has a second name: `Annotated[str | None, Alias("session_id")] = None`."""

    name: str


class RouteOptions(TypedDict, total=False):
    access: Required[Access]
    status: int  # of success: 200, or 204 where nothing is returned, unless said
    errors: tuple[type[LegationError], ...]  # beyond those that every route of its kind may answer with
    also: Mapping[int, object]  # other answers than success and problems, and their types: {503: Readiness}
    media: str  # of the answer; application/json unless said
    takes: str  # the media type of a body that the handler reads itself, as it arrives, from `call.request`
    listed: bool  # False: not part of the OpenAPI document
    body_bytes: int  # the longest `body`, where the limit of the settings is too small for what it is for
    refused: Callable[
        [Call, LegationError], Awaitable[None]
    ]  # hears of a request that cannot be read; what it raises is answered instead
    unread: bool  # neither the path's parameters nor the query are looked at; else all of them are declared


class Contract(msgspec.Struct, frozen=True):
    """Everything that a handler's signature and docstring say."""

    parameters: tuple[Parameter, ...]
    body: JsonBody | None
    answer: object  # the type of the success's body; None: there is none
    passes_through: bool  # the handler makes the whole Response itself
    summary: str
    description: str


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path: its handler, and the options of its route."""

    handler: Handler
    method: Method
    path: str  # the template
    tag: str
    name: str  # the operationId
    access: Access
    given_status: int | None = None
    errors: tuple[type[LegationError], ...] = ()
    also: Mapping[int, object] = field(default_factory=dict)
    media: str = "application/json"
    takes: str | None = None
    listed: bool = True
    body_bytes: int = 0
    refused: Callable[[Call, LegationError], Awaitable[None]] | None = None
    unread: bool = False
    tolerant: bool = False  # what it does not know in the query is ignored, as the original does

    # Types of some two hundred handlers and their decoders take longer to make than the server to start: each is made at
    # its first request. tests/server/test_openapi.py reads all of them, so that none fails there.
    @cached_property
    def contract(self) -> Contract:
        """Read the handler's signature; one that cannot be served is a TypeError that names the route."""
        try:
            return _contract(self)
        except _Refused as error:
            where = f"{self.method} {self.path} ({self.handler.__qualname__})"
            raise TypeError(f"cannot declare {where}: {error}") from error

    @cached_property
    def status(self) -> int:
        """The status of success."""
        nothing = self.contract.answer is None and not self.contract.passes_through
        return self.given_status or (204 if nothing else 200)


class Routes:
    """A group of routes; `legation.server.http.app.make_app` makes an application of several."""

    def __init__(self, *, tag: str, tolerant: bool = False) -> None:
        """`tolerant` ones ignore what they do not know in the query: programs of another server's were written so."""
        self.tag = tag
        self._tolerant = tolerant
        self._operations: list[Operation] = []

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations)

    def get(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        """Declare a GET. It answers HEAD too, without the body."""
        return self._route("GET", path, options)

    def post(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("POST", path, options)

    def put(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("PUT", path, options)

    def patch(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("PATCH", path, options)

    def delete(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("DELETE", path, options)

    def _route(self, method: Method, path: str, options: RouteOptions) -> Callable[[F], F]:
        given = {"given_status" if name == "status" else name: value for name, value in options.items()}

        def keep(handler: F) -> F:
            name = camel(handler.__name__)
            self._operations.append(
                Operation(
                    handler=handler,
                    method=method,
                    path=path,
                    tag=self.tag,
                    name=name,
                    tolerant=self._tolerant,
                    **given,  # type: ignore[arg-type]
                )
            )
            return handler

        return keep


def _contract(operation: Operation) -> Contract:
    handler, method = operation.handler, operation.method
    hints, parameters, body = _signature(handler, method, operation.path, unread=operation.unread)
    if operation.takes is not None and (body is not None or method in _BODYLESS):
        raise _Refused("a body that the handler reads itself leaves none for `body`, and a GET has none")
    return Contract(parameters, body, *_answer(hints["return"]), *_words(handler))


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class _Refused(Exception):
    pass


def _signature(
    handler: Handler, method: Method, path: str, *, unread: bool
) -> tuple[dict[str, object], tuple[Parameter, ...], JsonBody | None]:
    # A person types the address of a page, with a slash at its end or without; a program does not guess.
    if not _PATH.fullmatch(path.removesuffix("/") if unread else path):
        raise _Refused("write the path as /v1/things/{id}, with no slash at its end")
    if not inspect.iscoroutinefunction(handler):
        raise _Refused("make the handler an async function")
    hints, declared = _hints(handler), dict(inspect.signature(handler).parameters)
    first = next(iter(declared), "")
    if hints.get(first) is not Call:
        raise _Refused("let `call: Call` be the first parameter")
    del declared[first]
    in_path = [] if unread else re.findall(r"\{(\w+)\}", path)
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


def _body(method: Method, kind: object, default: object) -> JsonBody:
    if method in _BODYLESS:
        raise _Refused(f"a {method} has no body; take query parameters")
    try:
        msgspec.json.schema(kind)
        return JsonBody(kind, REQUIRED if default is inspect.Parameter.empty else default)
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
    if get_origin(kind) is RouteReply:
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


# The table in which they are found.

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Resource(msgspec.Struct):
    """A path and what can be done with it."""

    path: str
    operations: dict[str, Operation] = msgspec.field(default_factory=dict)
    allow: str = ""  # every method, as the Allow header lists them

    def add(self, operation: Operation) -> None:
        if operation.method in self.operations:
            raise TypeError(f"cannot declare {operation.method} {operation.path} twice: remove one")
        self.operations[operation.method] = operation
        if operation.method == "GET":
            self.operations["HEAD"] = operation
        self.allow = ", ".join(sorted(self.operations))


class _Node(msgspec.Struct):
    fixed: dict[str, _Node] = msgspec.field(default_factory=dict)
    parameter: _Node | None = None
    resource: Resource | None = None
    names: tuple[str, ...] = ()

    def find(self, segments: list[str], at: int) -> tuple[_Node, tuple[str, ...]] | None:
        if at == len(segments):
            return (self, ()) if self.resource else None
        segment = segments[at]
        if (fixed := self.fixed.get(segment)) and (found := fixed.find(segments, at + 1)):
            return found
        if self.parameter and segment and (found := self.parameter.find(segments, at + 1)):
            return found[0], (segment, *found[1])
        return None


class RouteTable:
    """Find the operations of a path: in a dictionary of fixed paths, then in a tree of segments for the templates.

    A fixed segment is preferred to a parameter. The raw path is matched, so that `%2F` is part of a segment."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._fixed: dict[str, Resource] = {}
        self._root = _Node()
        for operation in operations:
            self._add(operation)

    def find(self, raw_path: bytes) -> tuple[Resource, Mapping[str, str], InvalidParams | None] | None:
        """Find the resource, its path parameters, and what is wrong with their percent-encoding.

        That is not raised: who may call the resource at all is asked first."""
        path = raw_path.decode("latin-1")
        if (resource := self._fixed.get(path)) is not None:
            return resource, _NOTHING, None
        segments, broken = path.split("/")[1:], None
        if "%" in path:
            for at, each in enumerate(segments):
                try:
                    segments[at] = decode_segment(each)
                except InvalidParams as error:
                    broken = error  # the segment stays as it is, and is no fixed one
        found = self._root.find(segments, 0)
        if found is None or found[0].resource is None:
            return None
        return found[0].resource, dict(zip(found[0].names, found[1], strict=True)), broken

    def _add(self, operation: Operation) -> None:
        node, names = self._root, []
        for segment in operation.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        if node.resource is None:
            node.resource, node.names = Resource(operation.path), tuple(names)
        if node.resource.path != operation.path:
            raise TypeError(f"cannot declare {operation.path} beside {node.resource.path}: name it the same")
        node.resource.add(operation)
        if not names:
            self._fixed[operation.path] = node.resource
