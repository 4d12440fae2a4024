"""Agents from npm: pinned by a lock that is part of this package, checked, unpacked, and never run while at it."""
