"""What a recording says instead of this machine's and this run's own: folders, ports, ids, keys, long texts.

INV-R1  The same thing gets the same placeholder throughout a recording, so that what belonged together still does.
INV-R2  No value of a variable that is named like a secret is in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

LONGEST: Final = 400  # characters of one text that are kept
ELLIPSIS: Final = "…"
HIDDEN: Final = "***"

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
# `toolu_01A…`, `ses_…`: a short word, then something long with a digit in it, as no word of a language is.
_MADE_UP = re.compile(r"\b([A-Za-z]{1,10}[_-])(?=[0-9A-Za-z]*\d)[0-9A-Za-z]{10,}\b")
_PORT = re.compile(r"\b(127\.0\.0\.1|localhost):\d{2,5}\b")
_SHORTEST_SECRET = 6  # a shorter one would turn up by chance


class Neutral:
    """`places` are folders and what stands for them: `{"/home/me/work": "/w"}`. The longest is replaced first."""

    def __init__(self, places: Mapping[str, str], env: Mapping[str, str], longest: int = LONGEST) -> None:
        secrets = {value: HIDDEN for name, value in env.items() if _is_secret(name, value)}
        known = {**{place: word for place, word in places.items() if len(place) > 1}, **secrets}
        self._known = sorted(known.items(), key=lambda pair: -len(pair[0]))
        self._longest = longest
        self._ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def message(self, message: object) -> object:
        match message:
            case str():
                return self._cut(self.text(message))
            case list() | tuple():
                return [self.message(each) for each in message]
            case dict():
                return {self.text(str(name)): self.message(each) for name, each in message.items()}
            case _:
                return message

    def text(self, text: str) -> str:
        for found, word in self._known:
            text = text.replace(found, word)
        text = _PORT.sub(r"\1:0", text)
        text = _UUID.sub(lambda match: self._uuid(match[0]), text)
        return _MADE_UP.sub(lambda match: self._id(match[0], match[1]), text)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            name: HIDDEN if _SECRET.search(name) else str(self.message(value)) for name, value in env.items()
        }

    def _cut(self, text: str) -> str:
        return text if len(text) <= self._longest else text[: self._longest] + ELLIPSIS

    def _uuid(self, found: str) -> str:
        if found not in self._ids:
            self._ids[found] = f"00000000-0000-4000-8000-{self._count(''):012}"
        return self._ids[found]

    def _id(self, found: str, prefix: str) -> str:
        if found not in self._ids:
            self._ids[found] = f"{prefix}{self._count(prefix)}"
        return self._ids[found]

    def _count(self, prefix: str) -> int:
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        return self._counts[prefix]


def _is_secret(name: str, value: str) -> bool:
    return len(value) >= _SHORTEST_SECRET and _SECRET.search(name) is not None
