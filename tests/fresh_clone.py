"""A fresh clone, as a newcomer has it: the tree as it would be committed, a new HOME, no caches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.rules import committed_files

ROOT = Path(__file__).parents[1]
INSTALL_LIMIT = 900.0  # seconds for an install from the package index: the network's time

# How this machine reaches its package index; nothing else of the environment goes along.
_INDEX_VARIABLES = ("PIP_", "UV_", "SSL_CERT", "REQUESTS_CA", "CURL_CA")


def fresh_clone(folder: Path) -> Path:
    for name in committed_files(ROOT):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def newcomer_environment(home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(_INDEX_VARIABLES)}
    return {**kept, "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


# A new network has its loopback down, which no machine has: the demo's server is there.
_LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_:
    fcntl.ioctl(any_, 0x8914, struct.pack("16sH22x", b"lo", 0x49))  # SIOCSIFFLAGS: up, running, loopback
os.execvp(sys.argv[1], sys.argv[1:])
"""


def without_network() -> tuple[list[str], dict[str, str]]:
    """A command prefix and variables that leave no way to a package index."""
    prefix = ["unshare", "--map-root-user", "--net", sys.executable, "-c", _LOOPBACK]
    try:
        possible = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        possible = False
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    return (prefix if possible else []), {**nowhere, "PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
