"""A fresh clone, as a newcomer has it: the tree as it would be committed, a new HOME, no caches."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTALL_LIMIT = 900.0  # seconds for an install from the package index: the network's time

# How this machine reaches its package index; nothing else of the environment goes along.
_INDEX_VARIABLES = ("PIP_", "UV_", "SSL_CERT", "REQUESTS_CA", "CURL_CA")


_NOT_OURS = {".git", ".hypothesis", ".venv", ".agents", "__pycache__", "node_modules", "dist"}


def committed_files() -> list[str]:
    """What git has or would take; in a tree without git, whatever is no one's leavings."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return [
            str(path) for path in paths if not _NOT_OURS & set(path.parts) and "_cache" not in path.parts[0]
        ]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def fresh_clone(folder: Path) -> Path:
    for name in committed_files():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def newcomer_environment(home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(_INDEX_VARIABLES)}
    return {**kept, "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


def without_network() -> tuple[list[str], dict[str, str]]:
    """A command prefix and variables that leave no way to a package index."""
    prefix = ["unshare", "--map-root-user", "--net"]
    try:
        possible = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        possible = False
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    return (prefix if possible else []), {**nowhere, "PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
