"""Attachments of a message: files in the session's folders, told to the agent as links."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from mimetypes import guess_type
from pathlib import Path
from typing import Final
from urllib.parse import quote

from legation.errors import Forbidden, InvalidParams
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.content import ResourceLink
from legation.wire.action import MAX_PATH
from legation.wire.api.sessions import Attachment

MOST: Final = 100  # of one message


def links_to(
    attachments: Sequence[Attachment], folders: Sequence[Path], forbidden: ForbiddenPlaces
) -> tuple[ResourceLink, ...]:
    """Blocks for as long as the disk does: call it off the loop. A relative path begins in the first folder."""
    forbidden = forbidden.of_session(folders)
    if len(attachments) > MOST:
        raise InvalidParams(f"cannot attach more than {MOST} files; leave some out")
    return tuple(_link(number, each, folders, forbidden) for number, each in enumerate(attachments))


def _link(
    number: int, given: Attachment, folders: Sequence[Path], forbidden: ForbiddenPlaces
) -> ResourceLink:
    where = f"attachments[{number}]"
    if "\0" in given.path:
        raise _refusal(where, "its path holds the character NUL")
    if len(given.path) > MAX_PATH:
        raise _refusal(where, "its path is too long")
    path = Path(os.path.realpath(folders[0] / given.path))  # links lead where they lead
    if not any(path.is_relative_to(folder) for folder in folders):
        raise _refusal(where, "it is, or leads, outside the session's folders")
    try:
        forbidden.check_name(path.parts)
        status = path.stat()
        forbidden.check(status)
    except Forbidden:
        raise _refusal(where, "it is Legation's own or the system's") from None
    except (OSError, ValueError):
        raise _refusal(where, "there is no such file") from None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _refusal(where, "it is no file")
    return ResourceLink(
        name=given.filename or path.name,
        uri=f"file://{quote(os.fsencode(path))}",
        mime_type=given.mime or guess_type(path.name)[0],
        size=status.st_size if stat.S_ISREG(status.st_mode) else None,
    )


def _refusal(where: str, why: str) -> InvalidParams:
    return InvalidParams(
        f"cannot attach {where}: {why}; name a file in the session's folders",
        {"path": f"$.{where}.path", "type": "invalid_request"},
    )
