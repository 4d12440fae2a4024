"""What may stand unsealed in a table: ids, addresses, numbers, and words out of closed sets.

Text that somebody typed may hold a secret, and no check can tell. So nothing typed is let in: no space, no letter
beyond ASCII, and no word as long as a token. It is a net under the rule, not the rule: a short password would
pass, and whoever calls must not hand one over.
"""

import re
from typing import Final

from legation.errors import InternalError

LONGEST: Final = 200
# An id is 30 characters long; 24 random bytes, the shortest token there is, are 32.
LONGEST_WORD: Final = 31

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:,%-]*", re.ASCII)
_LONG_WORD: Final = re.compile(rf"[A-Za-z0-9_-]{{{LONGEST_WORD + 1}}}", re.ASCII)


def must_be_plain(text: str, what: str) -> str:
    """The text itself. The error names `what` and never quotes the text."""
    if fault := _fault(text):
        del text
        raise InternalError(
            f"cannot store {what}: {fault}, so it could be a secret; give an id, an address or a fixed word"
        )
    return text


def is_plain(text: str) -> bool:
    return _fault(text) is None


def _fault(text: str) -> str | None:
    if len(text) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    if not _PLAIN.fullmatch(text):
        return "it holds more than letters, digits and _ . : , % -"
    if _LONG_WORD.search(text):
        return f"it holds a word of more than {LONGEST_WORD} characters"
    return None
