"""The names that `legation.host` exports, and the two default handlers as they are called without arguments."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.host.rig import play, rig

import legation.host
from legation.host import create_acp_host, create_default_fs_handler, create_default_terminal_handler

LIMIT = 60.0  # seconds to start and import: the machine's time
NAMES = {
    "AcpError",
    "AcpHost",
    "create_acp_host",
    "create_default_fs_handler",
    "create_default_terminal_handler",
    "create_host_endpoint",
    "create_jsonl_storage",
    "create_memory_storage",
    "derive_client_capabilities",
    "normalize_session_update",
    "resolve_agent_definition",
    "resolve_host_options",
}


def test_these_are_exported_and_no_others() -> None:
    assert set(legation.host.__all__) == NAMES
    assert all(callable(getattr(legation.host, name)) for name in NAMES)
    with pytest.raises(AttributeError):
        legation.host.create_nothing  # noqa: B018


def test_none_is_loaded_before_it_is_used() -> None:
    look = "import sys, legation.host; print('legation.host.host' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], env={}, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.heavy
async def test_handlers_that_were_given_nothing_serve_the_sessions_of_their_host(tmp_path: Path) -> None:
    fs, terminal = create_default_fs_handler(), create_default_terminal_handler()
    async with rig(tmp_path, fs=fs, terminal=terminal) as at:
        session = await at.rehearse()
        await play(session, "fs-write a.txt hello", "terminal sh -c 'pwd; echo $HOME > b.txt'")
        assert (at.work / "a.txt").read_text() == "hello"
        assert (at.work / "b.txt").read_text().strip() == session.home


async def test_a_host_needs_no_options() -> None:
    async with create_acp_host() as host:
        assert host.get_agents() == []
