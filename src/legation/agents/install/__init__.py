"""Agents from npm: pinned by a lock that is part of this package, checked, unpacked, and never run while at it."""

from legation.agents.install.folder import Installed, InstallFolder
from legation.agents.install.installer import Progress, install, uninstall
from legation.agents.install.lock import Lock, Release, shipped
from legation.agents.install.target import Target
from legation.agents.install.verify import Verified, verify

__all__ = [
    "InstallFolder",
    "Installed",
    "Lock",
    "Progress",
    "Release",
    "Target",
    "Verified",
    "install",
    "shipped",
    "uninstall",
    "verify",
]
