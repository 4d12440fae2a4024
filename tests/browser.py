"""The browser of the tests: the machine's Chromium, else the one that Playwright keeps; `./dev test` brings either."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in _NAMES if (found := shutil.which(name))), None)  # None: Playwright's own


def is_here() -> bool:
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or "~/.cache/ms-playwright").expanduser()
    return CHROMIUM is not None or any(kept.glob("chromium*"))


# On a machine of CI a missing browser is a failure: the test then runs, and Playwright says what is missing.
needs_browser = pytest.mark.skipif(
    not is_here() and os.environ.get("CI", "").lower() not in ("true", "1"),
    reason="not run: Chromium is missing; `./dev test` installs it, or on Debian: apt-get install chromium",
)
