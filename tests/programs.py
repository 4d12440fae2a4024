"""Programs that some tests need and that no wheel carries: without them a test is not run, and says so."""

import shutil

import pytest

needs_git = pytest.mark.skipif(
    shutil.which("git") is None, reason="not run: git is missing; on Debian: apt-get install git"
)
