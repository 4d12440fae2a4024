"""Pages of ours: files in the package, kept by the browser and asked for again by their tag."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from starlette.responses import Response

from legation.server.http.call import Header

ASSETS: Final = Path(__file__).parents[1] / "assets"
_MEDIA: Final = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}

IfNoneMatch = Annotated[str | None, Header("If-None-Match")]


@dataclass(frozen=True, slots=True)
class Static:
    """Bytes that change only with the program: kept by the browser, asked for again by their tag."""

    data: bytes
    media: str
    tag: str

    @classmethod
    def of(cls, data: bytes, media: str) -> Static:
        return cls(data, media, f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def answer(self, known: str | None) -> Response:
        headers = {"etag": self.tag, "cache-control": "no-cache"}
        if known is not None and (known.strip() == "*" or self.tag in known):
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers={**headers, "content-type": self.media})


def static_files(folder: str) -> dict[str, Static]:
    """The files of one page, by name."""
    return {
        path.name: Static.of(path.read_bytes(), _MEDIA[path.suffix])
        for path in sorted((ASSETS / folder).iterdir())
        if path.suffix in _MEDIA
    }
