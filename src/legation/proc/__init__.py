"""Children of ours: how they start, what they say, and that nothing of them stays behind."""

from legation.proc.child import Child, Exit, Pipes
from legation.proc.launcher import Command, Launcher, ProcessLauncher, child_environment
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
