"""Which of a driver's own words stand for which in a recording: it chooses ids anew, and its agent repeats them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

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
