"""A recording of one child: what went in and came out, one JSON object a line, `{"t", "dir", "msg"}`.

`dir` is `start` (argv, env, cwd), `in`, `out`, `err`, `note` or `exit` (rc, minus the number of a signal). `msg` is the
line's JSON, or its text where it is none; `t` are seconds since the start.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.errors import InvalidParams
from legation.wire import jsontext

STDIN_CLOSED: Final = "stdin closed"  # notes on what was done to the child that is no line
STOPPED: Final = "stop"
OUTPUT_ENDED: Final = "EOF"
BY_ITSELF: Final = "by itself"  # it ended, and neither was done to it


@dataclass(frozen=True, slots=True)
class Entry:
    t: float
    dir: str
    msg: object

    def line(self) -> bytes:
        return jsontext.write({"t": self.t, "dir": self.dir, "msg": self.msg}) + b"\n"


def read_recording(path: Path) -> tuple[Entry, ...]:
    return tuple(_entry(line, path) for line in path.read_bytes().splitlines() if line.strip())


def message_of(line: bytes) -> object:
    """JSON where it is an object, else text."""
    try:
        found = jsontext.read(line)
    except jsontext.READ_ERRORS:
        found = None
    return found if isinstance(found, dict) else line.decode("utf-8", "replace")


async def in_blocks(batches: AsyncIterator[list[bytes]]) -> list[bytes]:
    """The next lines of a child as `Child.blocks` gives them."""
    async for lines in batches:
        if lines:
            return [b"\n".join(lines)]
    return []


def lines_of(messages: Iterable[object]) -> list[bytes]:
    return [each.encode() if isinstance(each, str) else jsontext.write(each) for each in messages]


def _entry(line: bytes, path: Path) -> Entry:
    found = message_of(line)
    if not isinstance(found, Mapping) or not {"dir", "msg"} <= found.keys():
        raise InvalidParams(
            f"cannot read the recording {path.name}: a line of it is no entry; record it again"
        )
    moment = found.get("t", 0.0)
    return Entry(float(moment) if isinstance(moment, int | float) else 0.0, str(found["dir"]), found["msg"])


# Which of a driver's own words stand for which in a recording: it chooses ids anew, and its agent repeats them.

_ID: Final = re.compile(r"(^|_)(uu)?id$|[a-z](Uui|I)d$")
_NAMES: Final = ("type", "method", "subtype")
_INNER: Final = ("request", "response")
_SHORTEST_INSIDE: Final = 8  # characters of an id that is looked for inside longer texts, too


def kind_of(message: object) -> tuple[str, ...]:
    """What kind of line it is: its method, type and subtype, or that it is an answer."""
    if not isinstance(message, Mapping):
        return ("text",)
    words = [str(message[name]) for name in _NAMES if isinstance(message.get(name), str)]
    for name in _INNER:
        inner = message.get(name)
        if isinstance(inner, Mapping) and isinstance(inner.get("subtype"), str):
            words.append(str(inner["subtype"]))
    if words:
        return tuple(words)
    return ("error",) if "error" in message else ("result",) if "result" in message else ("object",)


class Correspondence:
    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = [
            (re.compile(rf"(?<![\w./-]){re.escape(word)}(?![\w.-])"), place) for word, place in places.items()
        ]
        self._words: dict[str, str] = {}
        self._answers: dict[object, object] = {}  # ids of requests, which may be numbers

    def learn(self, recorded: object, written: object) -> None:
        if isinstance(recorded, Mapping) and isinstance(written, Mapping) and "id" in recorded:
            self._answers[recorded["id"]] = written.get("id")
        for old, new in _ids(recorded, written):
            self._words[old] = new

    def put(self, message: object) -> object:
        found = self._put(message)
        if (
            isinstance(found, dict)
            and isinstance(message, Mapping)
            and "method" not in found
            and "id" in found
        ):
            found["id"] = self._answers.get(message["id"], message["id"])
        return found

    def _put(self, message: object) -> object:
        match message:
            case str():
                return self._text(message)
            case list():
                return [self._put(each) for each in message]
            case dict():
                return {name: self._put(each) for name, each in message.items()}
            case _:
                return message

    def _text(self, text: str) -> str:
        if text in self._words:
            return self._words[text]
        for old, new in self._words.items():
            if len(old) >= _SHORTEST_INSIDE:
                text = text.replace(old, new)
        for word, place in self._places:
            text = word.sub(place.replace("\\", r"\\"), text)
        return text


def _ids(recorded: object, written: object) -> Iterator[tuple[str, str]]:
    """Pairs of different texts under the same name, where the name is an id's."""
    if isinstance(recorded, Mapping) and isinstance(written, Mapping):
        for name, old in recorded.items():
            new = written.get(name)
            if isinstance(old, str) and isinstance(new, str):
                if old != new and _ID.search(str(name)):
                    yield old, new
            else:
                yield from _ids(old, new)
    elif isinstance(recorded, list) and isinstance(written, list):
        for old, new in zip(recorded, written, strict=False):
            yield from _ids(old, new)
