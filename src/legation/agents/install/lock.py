"""The lock of agents: every package of every agent that may be installed, by version and hash, and for which machine.

INV-1  Nothing is fetched, unpacked or believed that is not named here: `integrity` is the hash of the tarball as
       npm has it, `tree` that of what is in it (folder.py), `packed`, `size` and `files` are its bounds.
INV-2  The lock names packages, never the place they come from: that is the owner's setting (fetch.py).
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from legation.errors import ConfigInvalid, NotFound, Unavailable

_CPUS: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_CPU_FILE: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class TargetMachine:
    """The machine to install for, in npm's words. `avx2` tells x64 builds for newer processors from those for all."""

    cpu: str
    libc: str
    avx2: bool = True

    def takes(self, cpu: Sequence[str], libc: Sequence[str], avx2: bool | None) -> bool:
        """Tell whether a package that names these, or none, is for this machine."""
        fits = (not cpu or self.cpu in cpu) and (not libc or self.libc in libc)
        return fits and (avx2 is None or self.cpu != "x64" or avx2 == self.avx2)

    def fill(self, template: str) -> str:
        """A path with this machine in it."""
        baseline = "-baseline" if self.cpu == "x64" and not self.avx2 else ""
        musl = "-musl" if self.libc == "musl" else ""
        machine = {"x64": "x86_64", "arm64": "aarch64"}[self.cpu]
        return template.format(cpu=self.cpu, machine=machine, baseline=baseline, musl=musl)


@cache
def here() -> TargetMachine:
    cpu = _CPUS.get(platform.machine().lower())
    if cpu is None or sys.platform != "linux":
        raise Unavailable(
            f"cannot install agents on {sys.platform} {platform.machine()}: they are locked for Linux on x64 and"
            f" arm64; name your own with a stanza in agents.toml"
        )
    host = str(sysconfig.get_config_var("HOST_GNU_TYPE") or "")
    return TargetMachine(cpu, "musl" if host.endswith("musl") else "glibc", avx2=_has_avx2())


def _has_avx2() -> bool:
    try:
        return " avx2 " in _CPU_FILE.read_text().replace("\n", " ")
    except OSError:
        return False  # the build for all runs anyway


FILE: Final = "lock.json"
_NAME: Final = re.compile(r"(@[a-z0-9._~-]+/)?[a-z0-9~][a-zA-Z0-9._~-]*")
_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+-]*")
_INTEGRITY: Final = re.compile(r"sha512-[A-Za-z0-9+/]{86}==")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`at` is the folder it is unpacked into, below the agent's. Without `cpu` or `libc` it is for all of them."""

    at: str
    name: str
    version: str
    integrity: str
    packed: int
    size: int
    files: int
    tree: str
    cpu: tuple[str, ...] = ()
    libc: tuple[str, ...] = ()
    avx2: bool | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class OfferedChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mode or a model that an agent offers."""

    id: str
    name: str
    description: str | None = None


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One version of an agent; `modes` and `models` are what it offered when it was locked."""

    version: str
    packages: tuple[Package, ...]
    modes: tuple[OfferedChoice, ...] = ()
    models: tuple[OfferedChoice, ...] = ()

    def packages_for(self, target: TargetMachine) -> tuple[Package, ...]:
        return tuple(each for each in self.packages if target.takes(each.cpu, each.libc, each.avx2))

    def covers(self, target: TargetMachine) -> bool:
        """Tell whether it was locked for such a machine: one that has platform packages needs one of them."""
        apart = [each for each in self.packages if each.cpu or each.libc]
        return not apart or any(each in apart for each in self.packages_for(target))

    def digest(self, target: TargetMachine) -> str:
        """Digest of what is installed there: another one means that it must be installed anew."""
        lines = sorted(f"{each.at} {each.integrity} {each.tree}" for each in self.packages_for(target))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first release of each agent is the one that is wanted."""

    agents: dict[str, tuple[Release, ...]]

    def wanted(self, agent: str) -> Release | None:
        return next(iter(self.agents.get(agent, ())), None)

    def release(self, agent: str, version: str | None) -> Release:
        releases = self.agents.get(agent, ())
        for each in releases:
            if version in (None, each.version):
                return each
        known = ", ".join(each.version for each in releases) or "none"
        raise NotFound(
            f"cannot install {agent} {version or ''}".rstrip()
            + f": the lock of this Legation has {known}; take one of those, or name your own in agents.toml"
        )


@cache
def shipped() -> Lock:
    return read_lock(files("legation.agents.install").joinpath(FILE).read_bytes())


def read_lock(text: bytes) -> Lock:
    try:
        lock = msgspec.json.decode(text, type=Lock)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"cannot read the lock of agents: {error}; install Legation again") from None
    for agent, releases in lock.agents.items():
        for release in releases:
            _check(agent, release)
    return lock


def _check(agent: str, release: Release) -> None:
    """A lock that is wrong is refused as a whole, before anything is fetched."""
    sound = _NAME.fullmatch(agent) and _VERSION.fullmatch(release.version) and release.packages
    if not sound or not all(map(_is_sound, release.packages)):
        raise ConfigInvalid(
            f"cannot use the lock of agents: its entry for {agent!r} {release.version!r} is malformed;"
            " install Legation again"
        )


def _is_sound(package: Package) -> bool:
    parts = PurePosixPath(package.at).parts
    matches = (
        _NAME.fullmatch(package.name),
        _VERSION.fullmatch(package.version),
        _INTEGRITY.fullmatch(package.integrity),
        _DIGEST.fullmatch(package.tree),
        "/".join(parts) == package.at and parts and parts[0] == "node_modules" and ".." not in parts,
        min(package.packed, package.size, package.files) >= 0,
    )
    return all(matches)
