"""Parameters of the path, the query and the headers: text in, typed values out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_origin
from urllib.parse import parse_qsl, unquote

import msgspec

from legation.errors import InvalidParams
from legation.server.http.expectation import expectation, invalid

Place = Literal["path", "query", "header"]
REQUIRED: Final = object()

_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MOST_FIELDS: Final = 1000  # of one query; nobody repeats a parameter more often in earnest
_BOOLEANS: Final = {"true": True, "false": False}


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
    """One segment of the path, percent-decoded: a slash in an id stays part of the id."""
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
) -> dict[str, object]:
    """The arguments of the handler. A query parameter that is unknown is refused, as a member of a body is."""
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
    if not queried.keys() <= {*known, *aliases}:
        raise _unknown(known)
    return values


def _of_query(queried: Mapping[str, list[str]], parameter: Parameter) -> list[str] | None:
    found = queried.get(parameter.wire)
    if parameter.alias is None or parameter.alias not in queried:
        return found
    return [*(found or ()), *queried[parameter.alias]]  # under both names is as twice under one


def _of_header(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str] | None:
    wanted = name.lower().encode("latin-1")
    return [value.decode("latin-1").strip() for key, value in headers if key == wanted] or None


def _unknown(known: list[str]) -> InvalidParams:
    return invalid("query", f"no other parameters than {', '.join(known)}" if known else "no parameters")
