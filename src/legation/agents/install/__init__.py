"""Agents from npm: pinned by a lock that is part of this package, checked, unpacked, and never run while at it."""

from legation.agents.install.folder import InstalledAgent, InstallFolder, Verified, verify
from legation.agents.install.installer import Progress, install, uninstall
from legation.agents.install.lock import Lock, Release, TargetMachine, shipped

__all__ = [
    "InstallFolder",
    "InstalledAgent",
    "Lock",
    "Progress",
    "Release",
    "TargetMachine",
    "Verified",
    "install",
    "shipped",
    "uninstall",
    "verify",
]
