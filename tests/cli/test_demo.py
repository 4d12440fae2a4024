from pathlib import Path

import pytest
from tests.cli.command import AtTerminal, legation

from legation.cli import demo

pytestmark = pytest.mark.heavy


def test_check_holds_every_line(home: Path) -> None:
    done = legation(home, "demo", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSING" not in done.stdout
    assert not list(home.iterdir())  # it leaves nothing, not even a data folder


def test_a_missing_line_fails_the_check(monkeypatch: object, capsys: object) -> None:
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PROMISES", (*demo.PROMISES, ("a miracle", "a line that nobody writes")))
        assert demo.demo(check=True) == 1


def test_a_person_decides_in_the_demo(home: Path) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "denied · person tester" in terminal.text
    assert "no file changed" in terminal.text
    assert "left behind: nothing" in terminal.text


def test_without_a_terminal_the_autopilot_is_named(home: Path) -> None:
    done = legation(home, "demo")
    assert "approved · demo:autopilot · Edit pages.py: careful:edit: nobody is at the terminal" in done.stdout
    assert "approved · demo:autopilot · Run python -m unittest: careful:ask: " in done.stdout
    assert "trace verify: ok, 17 steps" in done.stdout
    assert "legation exec --agent rehearsal" in done.stdout


def test_the_rules_of_the_demo_are_its_own(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("{name: p, rules: [{action: deny}]}")
    assert "approved · demo:autopilot" in legation(home, "demo", LEGATION_POLICY=str(policy)).stdout
