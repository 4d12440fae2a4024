"""The environment that a coding agent starts with: built up from an allow-list, never cut down from ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Where programs are, how text looks, which certificates are trusted. No proxies: egress decides on those.
# No keys: they come through `passed`, if at all.
INHERITED: Final = frozenset(
    {
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "COLORTERM",
        "SHELL",
        "USER",
        "LOGNAME",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    }
)
INHERITED_PREFIX: Final = "LC_"


def child_environment(
    passed: Mapping[str, str], *, home: Path, tmp: Path, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Names of the allow-list from `base` (ours by default), then `passed`; HOME and TMPDIR are always those given."""
    base = os.environ if base is None else base
    environment = {name: value for name, value in base.items() if _is_inherited(name)}
    environment.setdefault("PATH", os.defpath)
    return {**environment, **passed, "HOME": str(home), "TMPDIR": str(tmp)}


def _is_inherited(name: str) -> bool:
    return name in INHERITED or name.startswith(INHERITED_PREFIX)
