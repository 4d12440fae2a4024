"""Children of ours: how they start, what they say, and that nothing of them stays behind."""

from legation.proc.child import Child, Exit, Pipes
from legation.proc.launcher import Command, FileStdio, Launcher, ProcessLauncher, child_environment
from legation.proc.registry import Reaped, Registry, reap

__all__ = [
    "Child",
    "Command",
    "Exit",
    "FileStdio",
    "Launcher",
    "Pipes",
    "ProcessLauncher",
    "Reaped",
    "Registry",
    "child_environment",
    "reap",
]
