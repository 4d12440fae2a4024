"""The smallest real agent, from the registry that npm is set up with: locked, fetched, checked, started, offline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from legation.agents.catalogue import Catalogue
from legation.agents.catalogue.options import options_of
from legation.agents.catalogue.probe import examine
from legation.errors import Unavailable

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.timeout(900)]


async def test_the_real_codex_acp_installs_as_locked_and_answers(tmp_path: Path) -> None:
    try:
        installed = Catalogue(tmp_path).install("codex-acp")
    except Unavailable as error:
        pytest.skip(str(error))
    assert installed
    offline = Catalogue(
        tmp_path,
        environ={"PATH": os.defpath, "HOME": "/nonexistent", "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9"},
    )
    assert offline.install("codex-acp") == installed
    (verified,) = offline.verify("codex-acp")
    assert verified.problems == ()
    health = await examine(offline, "codex-acp")
    assert health.verdict == "ok", health
    asked, locked = await options_of(offline, "codex-acp"), offline.lock.wanted("codex-acp")
    assert locked
    assert asked.source == "asked", asked.problem
    assert (asked.modes, asked.models) == (locked.modes, locked.models), "renew: see make_options.py"
