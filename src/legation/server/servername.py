"""Which server this is: a name of its own for each data folder, the same at every start."""

from __future__ import annotations

import re
from pathlib import Path

from legation.errors import StorageFailed
from legation.ids import new_id
from legation.store.linefile import write_atomically


def server_name(path: Path) -> str:
    """A folder belongs to one process at a time, so a name does too."""
    try:
        kept = path.read_text("ascii").strip() if path.exists() else ""
        if re.fullmatch(r"srv_[0-9a-z]+", kept):
            return kept
        name = new_id("srv")
        write_atomically(path, f"{name}\n".encode())
    except (OSError, ValueError) as error:
        raise StorageFailed(
            f"cannot keep the server's name in {path}: remove the file, or mend its disk"
        ) from error
    return name
