"""The machine that an agent is installed for: platform packages and the paths in them depend on it."""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from legation.errors import Unavailable

_CPUS: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_CPU_FILE: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Target:
    """In npm's words. `avx2` tells x64 builds for newer processors from those for all."""

    cpu: str
    libc: str
    avx2: bool = True

    def takes(self, cpu: Sequence[str], libc: Sequence[str], avx2: bool | None) -> bool:
        """Whether a package that names these, or none, is for this machine."""
        fits = (not cpu or self.cpu in cpu) and (not libc or self.libc in libc)
        return fits and (avx2 is None or self.cpu != "x64" or avx2 == self.avx2)

    def fill(self, template: str) -> str:
        """A path with this machine in it."""
        baseline = "-baseline" if self.cpu == "x64" and not self.avx2 else ""
        musl = "-musl" if self.libc == "musl" else ""
        machine = {"x64": "x86_64", "arm64": "aarch64"}[self.cpu]
        return template.format(cpu=self.cpu, machine=machine, baseline=baseline, musl=musl)


@cache
def here() -> Target:
    cpu = _CPUS.get(platform.machine().lower())
    if cpu is None or sys.platform != "linux":
        raise Unavailable(
            f"cannot install agents on {sys.platform} {platform.machine()}: they are locked for Linux on x64 and"
            f" arm64; name your own with a stanza in agents.toml"
        )
    host = str(sysconfig.get_config_var("HOST_GNU_TYPE") or "")
    return Target(cpu, "musl" if host.endswith("musl") else "glibc", avx2=_has_avx2())


def _has_avx2() -> bool:
    try:
        return " avx2 " in _CPU_FILE.read_text().replace("\n", " ")
    except OSError:
        return False  # the build for all runs anyway
