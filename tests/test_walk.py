"""`./dev walk`: what it counts and what it does not."""

import ast
import json
from pathlib import Path

import pytest
from bench import walk

import legation

SOURCE = Path(legation.__file__).parent


@pytest.mark.heavy
def test_what_runs_on_the_way_is_counted_and_what_ran_before_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = tmp_path / "walk.json"
    walk.main(["message", "--repeat", "2", "--json", str(noted)])
    found = json.loads(noted.read_text())["message"]
    [ran] = found["always"].values()
    assert "server/http/app.py:App.__call__" in ran
    assert "cli/main.py:main" not in ran  # it began the server
    assert found["functions"] == len(ran)
    assert not [name for name in ran if "<module>" in name or "comp>" in name]
    assert f"message{found['files']:>17}{found['functions']:>11}" in capsys.readouterr().out


@pytest.mark.heavy
def test_a_command_is_counted_whole_and_each_function_once(tmp_path: Path) -> None:
    noted = tmp_path / "walk.json"
    walk.main(["permission", "--repeat", "1", "--json", str(noted)])
    found = json.loads(noted.read_text())["permission"]
    assert "cli/main.py:main" in found["always"]["cli"]
    both = {*found["always"]["cli"], *found["always"]["server"]}
    assert found["functions"] == len(both) < sum(map(len, found["always"].values()))


def test_what_did_not_run_every_time_is_counted_by_itself() -> None:
    walks = [
        {"server": frozenset({"a.py:f", "a.py:g", "b.py:h"})},
        {"server": frozenset({"a.py:f", "a.py:g"})},
    ]
    found = walk.Found.of([*walks])
    assert (len(found.files), len(found.functions)) == (1, 2)
    assert found.sometimes == {"server": {"b.py:h"}}


def test_every_timer_that_is_left_out_is_there() -> None:
    for timer in walk.TIMERS:
        file, _, name = timer.partition(":")
        tree = ast.parse((SOURCE / file).read_text())
        for part in name.replace(".<locals>", "").split("."):
            tree = next(  # type: ignore[assignment]
                each
                for each in ast.walk(tree)
                if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and each.name == part
            )
