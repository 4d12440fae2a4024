"""A hostile repository changes nothing unless its folder is trusted: with the real agents that are driven by ACP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agents.hostile_repository import HostileRepository, hostile_repository
from tests.agents.real_acp_agents import (
    CLAUDE,
    CODEX,
    GEMINI,
    OPENCODE,
    Kind,
    definition,
    furnish,
    scripted_model,
    start_of,
)
from tests.host.rig import of_type, rig

from legation.errors import Forbidden
from legation.wire.acp.updates import Text

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install


@pytest.fixture
def repository(tmp_path: Path) -> HostileRepository:
    made = hostile_repository(tmp_path / "work", tmp_path / "marks")
    for place in ("objects", "refs"):
        (made.folder / ".git" / place).mkdir(parents=True)
    (made.folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return made


async def asked(kind: Kind, repository: HostileRepository, place: Path, *, trusted: bool) -> int:
    """How often a command that is always to be asked about was asked about, in a turn with one."""
    start = start_of(kind).within(repository.folder, trusted=trusted)
    async with scripted_model() as model, rig(place) as made:
        furnish(kind, place / "data", model)
        agent = await made.host.spawn_agent(definition(kind, start, repository.folder, model))
        if kind.sign_in:
            await made.host.authenticate(agent.agent_id, kind.sign_in)
        session = await made.open(agent.agent_id)
        model.call_tool(*kind.command())
        model.say("Done.")
        result = await session.prompt((Text(text="go"),))
        assert (result.stop_reason, result.error) == ("end_turn", None)
        found = len(await of_type(session, "permission-asked"))
        await made.host.dispose_agent(agent.agent_id)
    return found


def variable(repository: HostileRepository) -> str:
    file = repository.folder / "variable.txt"
    return file.read_text().strip() if file.exists() else ""


@pytest.mark.parametrize("kind", [CLAUDE, CODEX, GEMINI], ids=lambda kind: kind.name)
async def test_what_is_not_trusted_changes_nothing(
    kind: Kind, repository: HostileRepository, tmp_path: Path
) -> None:
    assert await asked(kind, repository, tmp_path, trusted=False) == 1
    assert repository.left() == set()
    assert variable(repository) == ""


@pytest.mark.parametrize(
    ("kind", "asks", "marks"),
    [
        (CLAUDE, 0, {"claude-hook-SessionStart", "claude-hook-PreToolUse", "claude-mcp"}),
        (CODEX, 0, {"codex-mcp"}),
        (
            OPENCODE,
            0,
            {"opencode-folder-mcp", "opencode-plugin", "opencode-configured-plugin", "opencode-tool"},
        ),
        (
            GEMINI,
            1,
            {"gemini-discovery"},
        ),  # the folder wants a mode that does not ask: it gets none, trusted or not
    ],
    ids=lambda value: value.name if isinstance(value, Kind) else "",
)
async def test_what_is_trusted_counts(
    kind: Kind, asks: int, marks: set[str], repository: HostileRepository, tmp_path: Path
) -> None:
    """Which also shows that the repository is as hostile as the test above takes it to be."""
    assert await asked(kind, repository, tmp_path, trusted=True) == asks
    assert repository.left() >= marks


async def test_an_agent_that_cannot_be_told_is_not_started(repository: HostileRepository) -> None:
    start = start_of(OPENCODE)
    with pytest.raises(Forbidden, match=r"cannot start it in .*: it would act on .*opencode\.json"):
        start.within(repository.folder, trusted=False)
    (repository.folder / "below").mkdir()
    with pytest.raises(Forbidden, match="trust the folder with `legation trust`"):
        start.within(repository.folder / "below", trusted=False)


async def test_what_else_is_for_opencode_changes_nothing(
    repository: HostileRepository, tmp_path: Path
) -> None:
    """Without the files for which it is not started at all."""
    for path in ("opencode.json", ".opencode/opencode.json", ".opencode/plugin", ".opencode/plugins"):
        (repository.folder / path).rename(tmp_path / path.replace("/", "-"))
    assert await asked(OPENCODE, repository, tmp_path, trusted=False) == 1
    assert repository.left() == set()
