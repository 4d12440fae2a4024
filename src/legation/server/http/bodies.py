"""Bodies: checked for type and charset, decoded once. Whatever they hold, none makes a 500.

INV-B1  No object of a body names a member twice: whoever decided about the one would be told of the other.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

import msgspec
from starlette.types import Receive

from legation.errors import TooLarge, UnsupportedMedia
from legation.server.http.expectation import expectation, invalid
from legation.server.http.limits import BodyReader
from legation.server.http.parameters import REQUIRED

_JSON: Final = b"application/json"
# Bytes of a body that is looked through on the loop: the densest of that size takes some milliseconds.
_LOOKED_AT_ON_LOOP: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Body:
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
        """To JSON 5.0 is the integer 5 and some languages write it so; to msgspec it is a float."""
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
        _members.decode(data.decode())
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
_members: Final = json.JSONDecoder(
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
