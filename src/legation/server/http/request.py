"""Read a request: parameters and body, within limits of size and time, as values of the types that its route declares; the
name that the server is called by, and the page that calls.

INV     Nothing of what the caller sent is repeated; it may be a secret in the wrong place.
INV     No body takes more memory than the limit, however its length is announced, and none is waited for longer than
        `BODY_SECONDS` and a tick. Whatever it holds, it makes no 500.
INV-B1  No object of a body names a member twice: whoever decided about the one would be told of the other.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple, NoReturn, get_origin
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import inspect as shape
from starlette.requests import Request
from starlette.types import Message, Receive

from legation.errors import Cancelled, ConfigInvalid, Forbidden, InvalidParams, TooLarge, UnsupportedMedia
from legation.secret import looks_secret

REQUIRED: Final = object()
BODY_SECONDS: Final = 60.0  # the caller's time to send a whole body, over a slow line
TICKS: Final = 6  # looks at who is late, in that time
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in `)?(?P<path>\$[^`]*)`*)?$", re.DOTALL)
_PATH: Final = re.compile(r"\$(?:\.[A-Za-z0-9_]{1,64}|\[[0-9.]{1,9}\]){0,32}")
_EXPECTED: Final = re.compile(r"Expected (?P<what>.*?)(?:, got .*)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<item>[^\]]*)\]")
_JSON_WORDS: Final = {"int": "integer", "str": "string", "float": "number", "bool": "boolean"}
_PYTHON: Final = re.compile(r"(?<=`)(?:int|str|float|bool)\b|(?<=\| )(?:int|str|float|bool)\b")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MOST_FIELDS: Final = 1000  # of one query; nobody repeats a parameter more often in earnest
_BOOLEANS: Final = {"true": True, "false": False}
_MOST_DIGITS: Final = 15  # of a length; Python refuses to read numbers of thousands of digits
_JSON: Final = b"application/json"
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<name>[A-Za-z0-9_.-]{1,64})`")
# Bytes of a body that is looked through on the loop: the densest of that size takes some milliseconds.
_LOOKED_AT_ON_LOOP: Final = 64 * 1024


def invalid(path: str, expected: str) -> InvalidParams:
    return InvalidParams(
        f"cannot use the request: expected {expected} at {path}; correct it and send it again",
        {"path": path, "expected": expected},
    )


def expectation(error: msgspec.DecodeError, kind: object) -> tuple[str, str]:
    """Find the path and what was expected there, out of msgspec's message and the type it was decoding."""
    said = _AT.match(str(error))
    what, path = (said["what"], said["path"] or "$") if said else ("", "$")
    if not _PATH.fullmatch(path):  # a name that the caller made up, as long as they liked
        path = "$"
    if missing := _MISSING.fullmatch(what):
        return f"{path}.{missing['name']}", "a value (it is required)"
    if what.startswith("Object contains unknown field"):
        return path, _members(_at(kind, path))
    if expected := _EXPECTED.fullmatch(what):
        if "matching regex" in what and (words := _description(kind, path)):
            return path, words
        return path, _PYTHON.sub(lambda word: _JSON_WORDS[word[0]], expected["what"]).replace("`", "")
    if isinstance(error, msgspec.ValidationError):
        return path, _choices(_at(kind, path)) or "another value: this one is out of range"
    # msgspec's own words for what is not JSON name the byte, never the text.
    return path, f"JSON, which this is not: {what.removeprefix('JSON is malformed: ').lower()}"


def _at(kind: object, path: str) -> list[shape.Type]:
    """List every type that the schema allows at the path."""
    return [flat for each in _reached(kind, path) for flat in _flat(each)]


def _description(kind: object, path: str) -> str | None:
    """Find the words of the type itself to people, in place of its pattern."""
    return next((text for each in _reached(kind, path) for text in _descriptions(each)), None)


def _reached(kind: object, path: str) -> list[shape.Type]:
    found = [shape.type_info(kind)]
    for step in _STEP.finditer(path):
        found = [inner for each in found for flat in _flat(each) for inner in _step(flat, step)]
    return found


def _descriptions(kind: shape.Type) -> Iterator[str]:
    if isinstance(kind, shape.Metadata):
        yield from filter(None, [(kind.extra_json_schema or {}).get("description")])
        yield from _descriptions(kind.type)
    elif isinstance(kind, shape.UnionType):
        for each in kind.types:
            yield from _descriptions(each)


def _flat(kind: shape.Type) -> Iterator[shape.Type]:
    if isinstance(kind, shape.UnionType):
        for each in kind.types:
            yield from _flat(each)
    elif isinstance(kind, shape.Metadata):
        yield from _flat(kind.type)
    else:
        yield kind


def _step(kind: shape.Type, step: re.Match[str]) -> Iterator[shape.Type]:
    name, item = step["name"], step["item"]
    if isinstance(kind, shape.StructType) and name and name == kind.tag_field:
        yield shape.LiteralType((kind.tag,))
    elif isinstance(kind, shape.StructType) and name:
        yield from (field.type for field in kind.fields if field.encode_name == name)
    elif isinstance(kind, shape.DictType):
        yield kind.value_type
    elif isinstance(kind, shape.CollectionType) and item:
        yield kind.item_type


def _members(kinds: list[shape.Type]) -> str:
    structs = [kind for kind in kinds if isinstance(kind, shape.StructType)]
    names = [kind.tag_field for kind in structs if kind.tag_field]
    names += [field.encode_name for kind in structs for field in kind.fields]
    return f"no other members than {', '.join(dict.fromkeys(names))}" if names else "no members"


def _choices(kinds: list[shape.Type]) -> str:
    values: list[object] = []
    for kind in kinds:
        if isinstance(kind, shape.LiteralType):
            values += kind.values
        elif isinstance(kind, shape.EnumType):
            values += [each.value for each in kind.cls]
        elif isinstance(kind, shape.StructType) and kind.tag is not None:
            values.append(kind.tag)
    return f"one of {', '.join(map(str, values))}" if values else ""


Place = Literal["path", "query", "header"]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str  # in the handler
    place: Place
    wire: str  # in the request
    type: object  # never None: absence is the default
    default: object
    alias: str | None = None  # a second name in the query
    many: bool = field(init=False)
    _read: Callable[[str], object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        msgspec.json.schema(self.type)  # fails now, not at the first request
        object.__setattr__(self, "many", get_origin(self.type) is list)
        readers = {bool: self._boolean, str: str}
        object.__setattr__(self, "_read", readers.get(self.type, self._converted))  # type: ignore[call-overload]

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def read(self, found: list[str] | None) -> object:
        if found is None:
            if self.default is REQUIRED:
                raise invalid(self._where, "a value (it is required)")
            return self.default
        if "\0" in "".join(found):
            raise invalid(self._where, "text without the character NUL")
        if self.many:
            return self._converted(found)
        if len(found) > 1:
            raise invalid(self._where, "one value, not several")
        return self._read(found[0])

    @property
    def _where(self) -> str:
        return f"{self.place}.{self.wire}"

    def _boolean(self, text: str) -> bool:
        if text not in _BOOLEANS:
            raise invalid(self._where, "true or false")
        return _BOOLEANS[text]

    def _converted(self, text: str | list[str]) -> object:
        try:
            return msgspec.convert(text, self.type, strict=False)
        except msgspec.ValidationError as error:
            path, expected = expectation(error, self.type)
            raise invalid(self._where + path.removeprefix("$"), expected) from None


def read_query(raw: bytes) -> dict[str, list[str]]:
    try:
        text = raw.decode("ascii")
        if _BROKEN_ESCAPE.search(text):
            raise invalid("query", "percent-encoding with two hexadecimal digits")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:  # what is not ASCII, or not UTF-8 once decoded, or too many
        raise invalid("query", f"percent-encoded UTF-8 with at most {_MOST_FIELDS} parameters") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def decode_segment(raw: str) -> str:
    """Decode one segment of the path: a slash in an id stays part of the id."""
    try:
        if not _BROKEN_ESCAPE.search(raw):
            return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        pass
    raise invalid("path", "percent-encoded UTF-8")


def read_parameters(
    parameters: Iterable[Parameter],
    path: Mapping[str, str],
    query: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    tolerant: bool = False,
) -> dict[str, object]:
    """Read the arguments of the handler. An unknown query parameter is refused, as a member of a body is, unless the route
    is `tolerant`."""
    queried = read_query(query) if query else {}
    values: dict[str, object] = {}
    known: list[str] = []
    aliases: set[str | None] = set()
    for each in parameters:
        if each.place == "query":
            known.append(each.wire)
            aliases.add(each.alias)
            values[each.name] = each.read(_of_query(queried, each))
        elif each.place == "path":
            values[each.name] = each.read([path[each.wire]])
        else:
            values[each.name] = each.read(_of_header(headers, each.wire))
    if not tolerant and not queried.keys() <= {*known, *aliases}:
        raise _unknown_parameter(known)
    return values


def _of_query(queried: Mapping[str, list[str]], parameter: Parameter) -> list[str] | None:
    found = queried.get(parameter.wire)
    if parameter.alias is None or parameter.alias not in queried:
        return found
    return [*(found or ()), *queried[parameter.alias]]  # under both names is as twice under one


def _of_header(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str] | None:
    wanted = name.lower().encode("latin-1")
    return [value.decode("latin-1").strip() for key, value in headers if key == wanted] or None


def _unknown_parameter(known: list[str]) -> InvalidParams:
    return invalid("query", f"no other parameters than {', '.join(known)}" if known else "no parameters")


async def until_disconnected(receive: Receive) -> None:
    """Wait until the caller has gone. Only after the body: what else arrives is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


class BodyReader:
    """Read the bodies of one application. One timer serves them all: a timer each would cost more than decoding."""

    def __init__(self, seconds: float = BODY_SECONDS) -> None:
        self._seconds = seconds
        self._since: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._ticking: asyncio.AbstractEventLoop | None = None

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
        length = headers.get(b"content-length")
        if length is not None and (len(length) > _MOST_DIGITS or int(length) > limit):
            raise _too_large(limit)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._since[task] = loop.time()
        if self._ticking is not loop:
            self._tick(loop)
        try:
            message = await receive()
            if message.get("more_body") or message["type"] != "http.request":
                return await _collect(message, receive, limit)
            whole: bytes = message.get("body", b"")
            if len(whole) > limit:
                raise _too_large(limit)
            return whole
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel() > 0:
                raise
            raise InvalidParams(
                f"cannot read the body: it did not arrive within {self._seconds:g} s; send it again"
            ) from None
        finally:
            self._since.pop(task, None)
            self._late.discard(task)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for task, since in list(self._since.items()):
            if loop.time() - since >= self._seconds:
                self._late.add(task)
                del self._since[task]
                task.cancel()
        self._ticking = loop if self._since else None
        if self._since:
            loop.call_later(self._seconds / TICKS, self._tick, loop)


async def _collect(message: Message, receive: Receive, limit: int) -> bytes:
    parts = bytearray()
    while message["type"] == "http.request":
        parts += message.get("body", b"")
        if len(parts) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(parts)
        message = await receive()
    raise Cancelled("cannot read the body: the caller closed the connection")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"cannot take a body of more than {limit} bytes; send less", {"limit": limit})


@dataclass(frozen=True, slots=True)
class JsonBody:
    type: object
    default: object
    _decoder: msgspec.json.Decoder[object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decoder", msgspec.json.Decoder(self.type))

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    async def read(
        self, headers: Mapping[bytes, bytes], receive: Receive, reader: BodyReader, limit: int
    ) -> object:
        kind = headers.get(b"content-type")
        if kind is not None and kind != _JSON:
            check_media(kind)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMedia("cannot read a compressed body; send it as it is")
        data = await reader.read(headers, receive, limit)
        if not data:
            if self.default is REQUIRED:
                raise invalid("$", "a body of JSON")
            return self.default
        if kind is None:
            raise UnsupportedMedia("cannot read a body of no type; send Content-Type: application/json")
        value = self.decode(data)
        await check_members(data)
        return value

    def decode(self, data: bytes) -> object:
        try:
            if not data.isascii():
                data.decode()  # msgspec does not look into what it keeps raw
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                self._refuse(error)
            return self._decode_whole_floats(data, error)
        except msgspec.DecodeError as error:
            self._refuse(error)
        except UnicodeDecodeError:
            raise invalid("$", "JSON in UTF-8") from None
        except RecursionError:
            raise _too_deep() from None

    def _decode_whole_floats(self, data: bytes, first: msgspec.DecodeError) -> object:
        # To JSON 5.0 is the integer 5 and some languages write it so; to msgspec it is a float.
        try:
            value = json.loads(data, parse_float=_whole, parse_constant=_no_constant)
            return self._decoder.decode(msgspec.json.encode(value))
        except msgspec.ValidationError as error:
            self._refuse(error)
        except RecursionError:
            raise _too_deep() from None
        except (ValueError, OverflowError):  # not JSON further on: what was wrong first is said first
            self._refuse(first)

    def _refuse(self, error: msgspec.DecodeError) -> NoReturn:
        if (unknown := _UNKNOWN.search(str(error))) is not None and looks_secret(unknown["name"]):
            where = f"{expectation(error, self.type)[0]}.{unknown['name']}"
            raise InvalidParams(
                f"cannot take {unknown['name']} at {where}: it looks like a secret, and nothing here takes it; leave it out",
                {"name": unknown["name"], "path": where},
            ) from None
        raise invalid(*expectation(error, self.type)) from None


def check_media(kind: bytes) -> None:
    media, *parameters = kind.lower().split(b";")
    if media.strip() != _JSON:
        raise UnsupportedMedia("cannot read a body of this type; send Content-Type: application/json")
    for each in parameters:
        name, _, value = each.strip().partition(b"=")
        if name == b"charset" and value.strip(b'"') not in (b"utf-8", b"utf8"):
            raise UnsupportedMedia("cannot read a body in this charset; send UTF-8")


async def check_members(data: bytes) -> None:
    """Refuse JSON with an object that has a member twice, at any depth, also where it is spelt differently.

    The decoders take the last one without a word. `data` is known to be JSON in UTF-8."""
    if data.count(b":") < 2:  # then there are no two members at all
        return
    if len(data) <= _LOOKED_AT_ON_LOOP:
        _look_through(data)
    else:
        await asyncio.to_thread(_look_through, data)


def _look_through(data: bytes) -> None:
    try:
        _member_names.decode(data.decode())
    except _Twice:
        raise invalid("$", "each member of an object once") from None
    except ValueError:
        raise invalid("$", "JSON") from None
    except RecursionError:
        raise _too_deep() from None


class _Twice(Exception):
    pass


def _each_once(members: list[tuple[str, object]]) -> None:
    if len(members) > 1 and len({name for name, _ in members}) < len(members):
        raise _Twice


# Only names are of interest: numbers are not made, so that none is too long to be one. `len` takes a text, at no cost.
_member_names: Final = json.JSONDecoder(
    object_pairs_hook=_each_once, parse_int=len, parse_float=len, parse_constant=len, strict=False
)


def _too_deep() -> TooLarge:
    return TooLarge("cannot take a body nested this deeply; flatten it")


def _whole(text: str) -> int | float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("out of range")
    return int(number) if number.is_integer() and abs(number) < 2**63 else number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


# Hosts and origins.

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_EXPOSED: Final = b"Acp-Connection-Id, ETag, Link, Location, Request-Id, Retry-After"
_ALLOWED_HEADERS: Final = (
    b"Acp-Connection-Id, Acp-Session-Id, Authorization, Content-Type, Last-Event-ID, Legation-Workspace, Prefer, "
    b"X-Request-Id"
)
_PREFLIGHT_SECONDS: Final = b"600"  # the browser's: how long it may remember the answer
_LONGEST: Final = 262  # bytes of `name:port`: 255 of a name, its port, and an address' brackets
_AUTHORITY: Final = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_OURS: Final = frozenset({"same-origin", "none"})  # "none": the person's own doing, no page's


Headers = Iterable[tuple[bytes, bytes]]


class Authority(NamedTuple):
    """Addressee of a request, in one spelling: lower case, an IPv6 address in its short form, no brackets."""

    name: str
    port: int | None


class PageOrigin(NamedTuple):
    scheme: str
    name: str
    port: int


@lru_cache(maxsize=256)  # a server has few names, and is called by them all day
def read_authority(text: str) -> Authority | None:
    """Read `name`, `name:port` or `[address]:port`; None for every other spelling."""
    # What is read leniently here is read otherwise elsewhere, and then a foreign name passes for ours.
    found = _AUTHORITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    port = None if found["port"] is None else int(found["port"])
    if port is not None and not 0 < port < 65536:
        return None
    if found["name"] is not None:
        return Authority(found["name"].lower(), port)
    try:
        return Authority(str(ipaddress.IPv6Address(found["address"])), port)
    except ValueError:
        return None


def read_origin(text: str) -> PageOrigin | None:
    """Read `scheme://authority` as browsers send it, with the port that the scheme implies; None for whatever is none."""
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    authority = read_authority(rest) if scheme in _DEFAULT_PORTS else None
    if authority is None:
        return None
    return PageOrigin(scheme, authority.name, authority.port or _DEFAULT_PORTS[scheme])


class Origins:
    """Exact origins (`https://app.example.org`) whose pages may call with the user's credentials."""

    def __init__(self, origins: Collection[str]) -> None:
        for origin in origins:
            if read_origin(origin) is None:
                raise ConfigInvalid(
                    f"cannot allow the origin {origin}; name exact origins such as https://app.example.org"
                )
        self._origins = frozenset(origin.lower().encode("ascii") for origin in origins)

    def headers(self, request: Mapping[bytes, bytes]) -> Headers:
        if not self._origins:
            return ()
        vary = (b"vary", b"Origin")
        origin = request.get(b"origin", b"")
        if origin.lower() not in self._origins:
            return (vary,)
        return (
            vary,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-expose-headers", _EXPOSED),
        )

    def preflight(self, method: str, request: Mapping[bytes, bytes], allow: str) -> Headers | None:
        """Answer a browser that asks before it calls; None if this is not one, or not from a listed origin."""
        if method != "OPTIONS" or b"access-control-request-method" not in request:
            return None
        if request.get(b"origin", b"").lower() not in self._origins:
            return None
        return (
            (b"access-control-allow-methods", allow.encode("ascii")),
            (b"access-control-allow-headers", _ALLOWED_HEADERS),
            (b"access-control-max-age", _PREFLIGHT_SECONDS),
        )


class Hosts:
    """The names by which the server may be called: a page elsewhere whose name was made to point here is refused.

    INV-H1  A request names exactly one host, in a spelling that has one meaning; an HTTP/1.0 one may name none where
            every name will do."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = None if names is None else frozenset(map(_name, names))

    def check(self, headers: Iterable[tuple[bytes, bytes]], http_version: str = "1.1") -> None:
        found = [value for name, value in headers if name == b"host"]
        if not found and self._names is None and http_version == "1.0":
            return
        asked = read_authority(found[0].decode("latin-1")) if len(found) == 1 else None
        if asked is None or (self._names is not None and asked.name not in self._names):
            raise invalid("header.Host", "a name that this server is called by")


def _name(listed: str) -> str:
    """Read it as a request's; an IPv6 address may be listed with its brackets or without."""
    bare = listed.strip("[]")
    read = read_authority(f"[{bare}]" if ":" in bare else bare)
    return bare.lower() if read is None else read.name


class OwnOrigins:
    """Origins of our own pages: `public_url`, the name that a request is addressed to, and those that the owner listed.

    A browser sends its cookie with whatever page makes it call us, so a change is taken from these alone. Another port of
    this machine is the same *site* for a browser: SameSite does not keep that out, this does."""

    def __init__(self, public_url: str, listed: Collection[str] = ()) -> None:
        known = map(read_origin, (public_url.rstrip("/"), *listed))
        self._origins = frozenset(origin for origin in known if origin is not None)

    def check(self, request: Request) -> None:
        """Refuse a call that a cookie vouches for, unless the page that made it is known, and ours."""
        if request.method not in SAFE_METHODS and not self._is_ours(request):
            raise Forbidden(
                "cannot take this from a page of another site; open Legation's own page, or call with a token"
            )

    def check_page(self, request: Request) -> None:
        """Refuse a call that needs no cookie only if its page is known to be another's."""
        if ("origin" in request.headers or "sec-fetch-site" in request.headers) and not self._is_ours(
            request
        ):
            raise Forbidden("cannot sign in from a page of another site; open the link itself")

    def check_unvouched(self, request: Request) -> None:
        """Refuse a call of any page but those that are listed: nothing vouches for it, not even the name it calls us by."""
        sites = request.headers.getlist("sec-fetch-site")
        if "origin" not in request.headers and sites in ([], ["none"]):
            return
        name = (
            request.headers.get("origin") or f"{request.scope['scheme']}://{request.headers.get('host', '')}"
        )
        if not self._is_ours(request) or read_origin(name) not in self._origins:
            raise Forbidden(
                "cannot take this from a page in a browser without a credential; list its origin with --cors-allow-origin, "
                "or sign in"
            )

    def _is_ours(self, request: Request) -> bool:
        origins, sites = (request.headers.getlist(name) for name in ("origin", "sec-fetch-site"))
        if len(origins) > 1 or len(sites) > 1:  # no browser says it twice
            return False
        origin = read_origin(origins[0]) if origins else None
        if origins and origin is None and origins[0] != "null":
            return False  # nor in a spelling of its own, whatever else it says
        if sites and sites[0] in _OURS:
            return True
        # The scheme counts: the page of the same name over http may be anybody's on the way.
        addressed = read_origin(f"{request.scope['scheme']}://{request.headers.get('host', '')}")
        return origin is not None and (origin in self._origins or origin == addressed)
