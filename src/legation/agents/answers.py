"""What an agent answered, read as the protocol wants it read.

INV-A1  An optional member that does not fit counts as absent, an item of a list that does not fit is left
        out, unknown members are ignored. Only what is required must be right.
"""

from __future__ import annotations

import types
from typing import TypeVar, Union, cast, get_args, get_origin

import msgspec

from legation.wire import jsontext
from legation.wire.acp.salvage import salvaged

READ_ERRORS = jsontext.READ_ERRORS

_T = TypeVar("_T")


def read_answer(raw: bytes, shape: type[_T]) -> _T:
    """As `fit`; null is an empty object, as some agents have it."""
    value = jsontext.read(raw)
    return fit({} if value is None else value, shape)


def fit(value: object, shape: type[_T]) -> _T:
    """Raises one of READ_ERRORS where something required is missing or wrong."""
    try:
        return msgspec.convert(value, shape)
    except READ_ERRORS:
        return msgspec.convert(_fitted(salvaged(value), shape), shape)


def _fitted(value: object, kind: object) -> object:
    for part in get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,):
        if isinstance(value, dict) and isinstance(part, type) and issubclass(part, msgspec.Struct):
            return _with_fitting_members(value, part)
        if isinstance(value, list) and get_origin(part) is tuple:
            return _fitting_items(value, get_args(part)[0])
    return value


def _with_fitting_members(value: dict[str, object], shape: type[msgspec.Struct]) -> dict[str, object]:
    kept = dict(value)
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        if name in kept and not _reads_as(kept[name], field.type):
            kept[name] = _fitted(kept[name], field.type)
            if not field.required and not _reads_as(kept[name], field.type):
                del kept[name]
    return kept


def _fitting_items(items: list[object], kind: object) -> list[object]:
    fitted = (item if _reads_as(item, kind) else _fitted(item, kind) for item in items)
    return [item for item in fitted if _reads_as(item, kind)]


def _reads_as(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, cast(type[object], kind))
    except READ_ERRORS:
        return False
    return True
