"""What the system says about a file, as an error of ours.

What only the disk can tell is a `Conflict`: the request was well formed, and what is there does not allow it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from legation.errors import Conflict, Forbidden, LegationError, NotFound, StorageFailed

LONGEST_SHOWN: Final = 200  # characters of a path in a message

_Told = tuple[type[LegationError], str]
_NO_ROOM: Final[_Told] = (StorageFailed, "the disk is full or its quota used up; make room")
_DENIED: Final[_Told] = (Forbidden, "the server's user may not; change its permissions")
_MEANINGS: Final[Mapping[int, _Told]] = MappingProxyType(
    {
        errno.ENOENT: (NotFound, "there is no such file or folder; list the folder above"),
        errno.ENOTDIR: (Conflict, "a part of it is not a folder; list the folder above"),
        errno.EISDIR: (Conflict, "it is a folder; name a file"),
        errno.ENAMETOOLONG: (Conflict, "the name is too long; choose a shorter one"),
        errno.EILSEQ: (Conflict, "its disk does not take such a name; choose another"),
        errno.EINVAL: (Conflict, "that is not possible there; choose another path"),
        errno.ELOOP: (Conflict, "links lead to links without an end; name what they lead to"),
        errno.EEXIST: (Conflict, "something stands there; choose another path"),
        errno.ENOTEMPTY: (Conflict, "the folder is not empty; send recursive=true"),
        errno.EXDEV: (Conflict, "it would go to another file system; write it there and delete it here"),
        errno.EBUSY: (Conflict, "it is in use by the system; leave it"),
        errno.EROFS: (Forbidden, "its file system is read-only; choose another folder"),
        errno.EACCES: _DENIED,
        errno.EPERM: _DENIED,
        errno.ENOSPC: _NO_ROOM,
        errno.EDQUOT: _NO_ROOM,
        errno.EFBIG: _NO_ROOM,
    }
)


@contextmanager
def told(what: str, path: str) -> Iterator[None]:
    """`what` is a verb: "read". Errors of ours go through as they are."""
    try:
        yield
    except OSError as error:
        raise _meaning(error, what, path) from error


def shown(path: str) -> str:
    """A path for a message: on one line, not endless, and of characters that every encoding has."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _meaning(error: OSError, what: str, path: str) -> LegationError:
    kind, why = _MEANINGS.get(
        error.errno or 0, (StorageFailed, f"{error.strerror}; check the disk, then try again")
    )
    return kind(f"cannot {what} {shown(path)}: {why}")
