from __future__ import annotations

from pathlib import Path

import pytest

from legation.agents.catalogue import Start
from legation.agents.catalogue.entries import KNOWN, Stance
from legation.agents.driver import SessionStart
from legation.errors import Forbidden

AGENT = Start(
    ("agent", "serve"),
    {"QUIET": "1"},
    trusted=Stance(("--heed={folder}",), {"HEED": "1"}),
    untrusted=Stance(("--ignore={folder}",), {"HEED": "0"}, SessionStart({"x": 1}, "default")),
    obeys=("agent.json", ".agent/plugins/*"),
)


def test_what_is_added_depends_on_whether_the_folder_is_trusted() -> None:
    trusted = AGENT.within(Path("/w"), trusted=True)
    assert trusted.argv == ("agent", "serve", '--heed="/w"')
    assert trusted.env == {"QUIET": "1", "HEED": "1"}
    assert trusted.beginning == SessionStart()
    untrusted = AGENT.within(Path("/w"), trusted=False)
    assert untrusted.argv == ("agent", "serve", '--ignore="/w"')
    assert untrusted.env == {"QUIET": "1", "HEED": "0"}
    assert untrusted.beginning == SessionStart({"x": 1}, "default", obeys=AGENT.obeys)


def test_no_name_of_a_folder_ends_its_quotes() -> None:
    started = AGENT.within(Path('/w/a" \\b\n{folder}'), trusted=False)
    assert started.argv[-1] == '--ignore="/w/a\\" \\\\b\\n{folder}"'


@pytest.mark.parametrize("file", ["agent.json", ".agent/plugins/x.js"])
@pytest.mark.parametrize("place", ["", "below"])
def test_what_it_obeys_keeps_it_from_being_started_unless_trusted(
    file: str, place: str, tmp_path: Path
) -> None:
    folder = tmp_path / "repository" / place
    folder.mkdir(parents=True)
    found = tmp_path / "repository" / file
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text("")
    with pytest.raises(Forbidden, match="it would act on") as caught:
        AGENT.within(folder, trusted=False)
    assert str(found) in caught.value.message
    assert AGENT.within(folder, trusted=True).env["HEED"] == "1"


def test_what_is_above_the_repository_is_not_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (tmp_path / "agent.json").write_text("")
    with pytest.raises(Forbidden):
        AGENT.within(folder, trusted=False)  # a `.git` without a HEAD is no repository to Git
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    with pytest.raises(Forbidden):  # git takes it for none yet, and so would an agent
        AGENT.within(folder, trusted=False)
    for part in ("objects", "refs"):
        (folder / ".git" / part).mkdir()
    assert AGENT.within(folder, trusted=False).env["HEED"] == "0"


def test_every_agent_by_acp_has_a_stance_on_folders_that_are_not_trusted() -> None:
    plain = [
        entry.name
        for entry in KNOWN
        for way in (entry.way,)
        if way.driver == "acp" and way.untrusted == Stance() and not way.obeys
    ]
    assert plain == ["rehearsal", "mock"]  # which read no configuration
