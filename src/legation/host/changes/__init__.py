"""Changes of an agent in a folder: by git where there is a repository, else by comparing copies."""

from legation.host.changes.git import FileChange, FolderChanges
from legation.host.changes.snapshot import Snapshot

__all__ = ["FileChange", "FolderChanges", "Snapshot"]
