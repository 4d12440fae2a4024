"""Children of ours: how they start, what they say, and that nothing of them stays behind."""

from legation.proc.child import Child, Pipes
from legation.proc.environment import child_environment
from legation.proc.exit import Exit
from legation.proc.launcher import Command, Launcher, ProcessLauncher
from legation.proc.registry import Reaped, Registry, reap

__all__ = [
    "Child",
    "Command",
    "Exit",
    "Launcher",
    "Pipes",
    "ProcessLauncher",
    "Reaped",
    "Registry",
    "child_environment",
    "reap",
]
