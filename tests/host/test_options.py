"""Options and definitions: everything that is wrong with them at once, frozen when they are right."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from legation.errors import ConfigInvalid
from legation.host.options import (
    AgentDefinition,
    Backoff,
    HostOptions,
    Limits,
    resolve_agent_definition,
    resolve_host_options,
)


def problems(error: pytest.ExceptionInfo[ConfigInvalid]) -> list[str]:
    assert error.value.data is not None
    found = error.value.data["problems"]
    assert isinstance(found, list)
    return found


def test_every_problem_of_the_options_is_named_at_once() -> None:
    """Configuration pipeline."""
    given: dict[str, object] = {
        "restart": "always",
        "restart_limit": -1,
        "kill_timeout_ms": "5s",
        "restart_backoff": {"initial_ms": float("nan"), "jitter": 1},
        "limits": 7,
        "fs": "none",
        "max_line": True,
        "data_dir": 3,
        "colour": "red",
    }
    with pytest.raises(ConfigInvalid) as refused:
        resolve_host_options(given)
    found = problems(refused)
    words = (
        *("restart is", "restart_limit is", "kill_timeout_ms is", "restart_backoff.initial_ms is"),
        *("restart_backoff: jitter is unknown", "limits is", "fs is", "max_line is", "data_dir is"),
        "colour is unknown",
    )
    assert len(found) == len(words)
    for word in words:
        assert any(problem.startswith(word) for problem in found), word


def test_every_problem_of_a_definition_is_named_at_once_and_no_value_is_quoted() -> None:
    """Configuration pipeline."""
    given: dict[str, object] = {
        "id": " ",
        "args": "one two",
        "env": {"KEY": 5, "OTHER": "s3cret-canary"},
        "meta": [],
        "cwd": 5,
    }
    with pytest.raises(ConfigInvalid) as refused:
        resolve_agent_definition(given)
    assert sorted(problem.split()[0] for problem in problems(refused)) == [
        *("args", "command", "cwd", "env"),
        *("id", "meta"),
    ]
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("given", [5, "x", [("command", "x")]])
def test_what_is_no_mapping_is_refused(given: object) -> None:
    with pytest.raises(ConfigInvalid):
        resolve_agent_definition(given)  # type: ignore[arg-type]
    with pytest.raises(ConfigInvalid):
        resolve_host_options(given)  # type: ignore[arg-type]


def test_options_are_frozen_and_have_the_documented_defaults(tmp_path: Path) -> None:
    """HostOptions."""
    options = resolve_host_options({"restart_backoff": {"max_ms": 5}, "limits": {"idle": 3}, "data_dir": "x"})
    assert options.restart_backoff == Backoff(max_ms=5)
    assert options.limits == Limits(idle=3)
    assert options.data_dir == Path("x").absolute()
    with pytest.raises(FrozenInstanceError):
        options.restart = "on-crash"  # type: ignore[misc]
    default = resolve_host_options()
    assert (default.storage, default.fs, default.terminal) == (None, "default", None)
    assert resolve_host_options(HostOptions(restart="on-crash")).restart == "on-crash"


def test_the_pauses_grow_to_their_most() -> None:
    """HostOptions.restartBackoff."""
    assert [Backoff().seconds(attempt) for attempt in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_definitions_meta_is_a_frozen_shallow_copy() -> None:
    """AgentDefinition.meta."""
    inner: list[int] = [1]
    meta: dict[str, object] = {"inner": inner}
    env = {"A": "1"}
    resolved = resolve_agent_definition(AgentDefinition(command="x", meta=meta, env=env))
    meta["more"] = True
    env["B"] = "2"
    inner.append(2)
    assert dict(resolved.meta) == {"inner": [1, 2]}
    assert dict(resolved.env) == {"A": "1"}
    with pytest.raises(TypeError):
        resolved.meta["more"] = True  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        resolved.meta = {}  # type: ignore[misc]


def test_a_definition_works_in_the_hosts_folder_unless_it_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cwd default."""
    monkeypatch.chdir(tmp_path)
    assert resolve_agent_definition({"command": "x"}).cwd == tmp_path
    assert resolve_agent_definition({"command": "x", "cwd": "sub"}).cwd == tmp_path / "sub"


def test_variables_are_not_shown() -> None:
    """INV-7."""
    assert "canary" not in repr(resolve_agent_definition({"command": "x", "env": {"KEY": "canary"}}))
