"""Make the lock anew: for whoever changes Legation, with npm and a network at hand.

    python -m tools.make_lock claude @anthropic-ai/claude-code@2.1.325 ...

npm resolves; every tarball is then fetched, checked against npm's hash, unpacked and measured. The entry of that
agent in lock.json is replaced, with the version of the first package; the modes and models that it had stay until
`python -m tools.make_options NAME` asks the agent itself.
"""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from legation.agents.install import lock
from legation.agents.install.fetch import Fetcher, configured, opened
from legation.agents.install.folder import digest
from legation.agents.install.installer import Bounds, unpack
from legation.agents.install.lock import FILE, Lock, Package, Release, read_lock

HERE: Final = Path(lock.__file__).parent / FILE
RESOLVE_LIMIT: Final = 300.0  # seconds for npm to resolve one agent: the network's time
_MACHINES: Final = [(cpu, libc) for cpu in ("x64", "arm64") for libc in ("glibc", "musl")]
_HUGE: Final = 2**31  # bytes; nothing is known yet of a package that is being locked
_RESOLVE: Final = "install --package-lock-only --ignore-scripts --no-audit --no-fund --force --os linux"

# What the agents do without: wrappers that only look for the binary, a second copy of a binary, and what would have
# to be compiled by a script, which is never run (the programs fall back by themselves).
LEFT_OUT: Final = (
    "@anthropic-ai/claude-agent-sdk-*",
    "@anthropic-ai/claude-code",
    "@openai/codex",
    "@sourcegraph/amp",
    "@ampcode/cli",
    "@zed-industries/codex-acp",
    "opencode-ai",
    "@github/keytar",
    "node-addon-api",
    "node-pty",
    "nan",
)


def main(agent: str, *specs: str) -> None:
    found: dict[str, Package] = {}
    with tempfile.TemporaryDirectory() as folder, opened(configured(os.environ), exact=False) as fetcher:
        for number, (cpu, libc) in enumerate(_MACHINES):
            place = Path(folder, str(number))
            for at, entry in _resolved(place, specs, cpu, libc):
                if at not in found:
                    found[at] = _measured(fetcher, place, at, entry)
    version = specs[0].rpartition("@")[2]
    old = read_lock(HERE.read_bytes()) if HERE.exists() else Lock({})
    before = old.wanted(agent)
    release = Release(
        version,
        tuple(found[at] for at in sorted(found)),
        before.modes if before else (),
        before.models if before else (),
    )
    write(Lock({**old.agents, agent: (release,)}))


def write(lock: Lock) -> None:
    ordered = Lock(dict(sorted(lock.agents.items())))
    HERE.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def _resolved(
    place: Path, specs: tuple[str, ...], cpu: str, libc: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    place.mkdir()
    (place / "package.json").write_text('{"private": true}')
    argv = ["npm", *_RESOLVE.split(), "--cpu", cpu, "--libc", libc, *specs]
    subprocess.run(argv, cwd=place, check=True, timeout=RESOLVE_LIMIT, stdout=sys.stderr)
    packages = msgspec.json.decode((place / "package-lock.json").read_bytes())["packages"]
    for at, entry in packages.items():
        name = _name(at)
        left_out = any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT)
        for_linux = "linux" in entry.get("os", ["linux"]) and cpu in entry.get("cpu", [cpu])
        if at and not left_out and for_linux:
            yield at, entry


def _name(at: str) -> str:
    return at.rpartition("node_modules/")[2]


def _measured(fetcher: Fetcher, place: Path, at: str, entry: dict[str, Any]) -> Package:
    name = entry.get("name") or _name(at)  # some lie under another name than the registry has them by
    wanted = Package(at, name, entry["version"], entry["integrity"], _HUGE, _HUGE, 10**6, "")
    tarball, into = place / "package.tgz", place / f"unpacked-{len(list(place.iterdir()))}"
    fetcher.fetch(wanted, tarball, lambda _: None)
    marks = unpack(tarball, into, Bounds(wanted.files, wanted.size))
    print(f"{wanted}: {len(marks)} files", file=sys.stderr)
    return Package(
        at=at,
        name=name,
        version=wanted.version,
        integrity=wanted.integrity,
        packed=tarball.stat().st_size,
        size=sum(mark.size for mark in marks),
        files=len(marks),
        tree=digest(marks),
        cpu=tuple(entry.get("cpu", ())),
        libc=tuple(entry.get("libc", ())) or _libc_of(name, entry),
        avx2=_avx2_of(name),
    )


def _libc_of(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    """OpenCode's packages tell it by their names alone."""
    if not name.startswith("opencode-") or not entry.get("cpu"):
        return ()
    return ("musl",) if name.endswith("-musl") else ("glibc",)


def _avx2_of(name: str) -> bool | None:
    if not name.startswith("opencode-linux-x64"):
        return None
    return "baseline" not in name


if __name__ == "__main__":
    main(*sys.argv[1:])
