from pathlib import Path

import pytest

from legation.agents.catalogue.entries import CatalogueEntry, Direct, read_custom
from legation.agents.driver import AskingModes
from legation.errors import ConfigInvalid


def read(tmp_path: Path, text: str) -> tuple[CatalogueEntry, ...]:
    (tmp_path / "agents.toml").write_text(text)
    return read_custom(tmp_path / "agents.toml", {"claude", "mock"})


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert read_custom(tmp_path / "agents.toml", ()) == ()


def test_a_stanza_with_a_command_is_enough(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, "[agents.mine]\ncommand = \"my-agent --acp 'a b'\"\n")
    assert (entry.name, entry.title, entry.origin) == ("mine", "mine", "custom")
    assert entry.way.program == Direct(("my-agent", "--acp", "a b"))


def test_a_stanza_may_say_more(tmp_path: Path) -> None:
    text = '[agents.mine]\ncommand = "my-agent"\nargs = ["$HOME", "a b"]\nenv = ["MY_KEY"]\ntitle = "Mine"\n'
    (entry,) = read(tmp_path, text)
    assert entry.way.program == Direct(("my-agent", "$HOME", "a b"))
    assert (entry.passes, entry.credentials, entry.title) == (("MY_KEY",), ("MY_KEY",), "Mine")


def test_a_stanza_may_say_in_which_modes_the_agent_asks(tmp_path: Path) -> None:
    text = '[agents.mine]\ncommand = "x"\nasking_modes = ["careful"]\nunasking_modes = ["turbo", "zoom"]\n'
    (entry,) = read(tmp_path, text)
    assert entry.modes == AskingModes(("careful",), ("turbo", "zoom"))
    with pytest.raises(ConfigInvalid, match=r"agents.mine.unasking_modes: write a list"):
        read(tmp_path, '[agents.mine]\ncommand = "x"\nunasking_modes = "turbo"\n')


def test_a_stanza_may_withhold_fs(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, '[agents.mine]\ncommand = "x"\nfs = false\n')
    assert not entry.fs
    (entry,) = read(tmp_path, '[agents.mine]\ncommand = "x"\n')
    assert entry.fs
    with pytest.raises(ConfigInvalid, match=r"agents.mine.fs: write true or false"):
        read(tmp_path, '[agents.mine]\ncommand = "x"\nfs = "no"\n')


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = """
    other = 1
    [agents.Bad]
    command = "x"
    [agents.claude]
    command = "x"
    [agents.a]
    [agents.b]
    command = "un'closed"
    args = "text"
    env = ["KEY=value"]
    title = 3
    colour = "red"
    """
    with pytest.raises(ConfigInvalid) as caught:
        read(tmp_path, text)
    assert caught.value.data
    problems = caught.value.data["problems"]
    assert isinstance(problems, list)
    assert sorted(problem.partition(":")[0] for problem in problems) == [
        "agents.Bad",
        "agents.a.command",
        "agents.b.args",
        "agents.b.colour",
        "agents.b.command",
        "agents.b.env",
        "agents.b.title",
        "agents.claude",
        "other",
    ]
    assert "value" not in str(caught.value).replace("never values", "")


@pytest.mark.parametrize("text", ["[agents", "agents = 3", "[agents]\nmine = 'x'"])
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"agents\.toml"):
        read(tmp_path, text)
