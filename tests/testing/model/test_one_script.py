"""One script, any agent: the real programs make of it the same files."""

from pathlib import Path

import pytest
from tests import real_agents
from tests.testing.model import real_one_shot

from legation.testing.model import EditFile, ReadFile, RunShell, ScriptedModel, Text, WriteFile

pytestmark = [pytest.mark.heavy, pytest.mark.network]

AGENTS: dict[str, real_one_shot.Prepare] = {
    "claude": real_one_shot.claude,
    "codex": real_one_shot.codex,
    "codex-code-mode": real_one_shot.codex_code_mode,
    "opencode": real_one_shot.opencode,
}


@pytest.mark.parametrize("name", AGENTS)
async def test_a_script_that_names_no_tool_drives(name: str, tmp_path: Path) -> None:
    _installed(name)
    async with ScriptedModel(may_knock=name == "opencode") as model:
        written = model.call(WriteFile("a.txt", "one\n"), say="First the file.")
        model.call(ReadFile("a.txt"))
        model.call(EditFile("a.txt", "one\n", "two\n"))
        model.reply(Text("And a copy."), RunShell("cp a.txt b.txt"))
        model.say("All done.")
        said = await real_one_shot.shoot(AGENTS[name], model, tmp_path, "Write, read, edit, copy.")
        results = [result for request in model.requests for result in request.tool_results]
    assert "All done." in said
    assert (tmp_path / "work" / "b.txt").read_text().split() == ["two"]
    assert results[0].id == written.id
    assert "one" in results[1].text
    assert len(results) == 4


def _installed(name: str) -> None:
    try:
        if name.startswith("codex"):
            real_agents.install("codex")
        else:
            real_agents.agent(name)
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
