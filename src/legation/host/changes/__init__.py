"""What did the agent change in this folder? By git where there is a repository, else by comparing copies."""

from legation.host.changes.git import Changes, FileChange
from legation.host.changes.snapshot import Snapshot

__all__ = ["Changes", "FileChange", "Snapshot"]
