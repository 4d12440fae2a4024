"""Mistakes that people make at the command line, where no server is needed: one message each, with the next step.

Those of `exec` are in `test_exec.py`, those that need a server in `test_up.py`, those about agents in `test_agents.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from legation.cli.main import ELSEWHERE, run

NO_SERVER = "start one with `legation up`"
MISTAKES = [
    (("legation", "up"), 2, "legation --help"),
    (("exce", "--agent", "claude", "fix it"), 2, 'Did you mean "exec"?'),
    (("up", "--port", "70000"), 2, "1 to 65535"),
    (("up", "--port", "http"), 2, "legation up --help"),
    (("up", "--policy", "nothing.yaml"), 2, "nothing.yaml: cannot be read"),
    (("up", "--policy", "broken.yaml"), 2, "broken.yaml:2: not YAML"),
    (("up", "--tools", "nothing.yaml"), 2, "take the setting `tools` out"),
    (("up", "--tls-cert", "cert.pem"), 2, "tls_key is missing"),
    (("server", "--host", "0.0.0.0"), 2, "LEGATION_TOKEN is missing"),
    (("status", "--url", "ftp://example.com"), 2, "http"),
    (("sessions", "new", "rehearsal", " "), 2, "say what to do"),
    (("sessions", "tail", "ses_1"), 10, NO_SERVER),
    (("sessions", "tail", "ses_1", "--from", "0"), 2, "a number from 1"),
    (("approvals", "approve", "apr_1"), 10, NO_SERVER),
    (("approvals", "--all", "--status", "pending"), 2, "--status or --all"),
    (("approvals", "approve", "apr_1", "--params", "{"), 2, "JSON"),
    (("events", "ses_nothing"), 3, "`legation events` lists them"),
    (("events", "last"), 3, "legation exec"),
    (("policy", "check", "nothing.yaml"), 2, "No such file"),
    (("policy", "init", "broken.yaml"), 5, "choose another name"),
    (("prune", "--older-than", "90"), 2, '"90d"'),
    (("prune",), 2, "--older-than"),
    (("backup",), 2, "legation backup --help"),
    (("restore", "broken.yaml"), 2, "not a whole backup"),
    (("grants", "new"), 2, "legation grants --help"),
    (("runner",), 2, "give --config"),
    (("receiver",), 2, "--token-file"),
    (("users", "new", "Ada", "--role", "emperor"), 2, '"owner"'),
    (("worker",), 2, "LEGATION_DATABASE_URL is missing"),
    (("ps",), 10, NO_SERVER),
    (("ps", "--wach"), 2, "Did you mean --watch?"),
    (("run",), 2, "as `legation agents` lists them"),
    (("runs", "show", "run_1"), 10, NO_SERVER),
    (("acp", "--cwd", "nothing"), 2, "choose one with --cwd"),
    (("sessions", "delete"), 2, "as `legation sessions` lists them"),
    (("tokens", "new"), 2, "legation tokens new --help"),
    (("doctor", "--al"), 2, "Did you mean --all?"),
    (("logs",), 2, "but `legation events`"),
    (("start",), 2, "but `legation up`"),
    (("ls",), 2, "but `legation ps`"),
    (("login", "claude"), 2, "but `legation agents login`"),
    (("exec", "-a", "rehearsal", "hi"), 2, "legation exec --help"),
    (("run", "x", "--agent", "rehearsal", "--var", "one"), 2, "NAME=VALUE"),
    (("policy", "check", "."), 2, "correct the syntax"),
    (("up", "--data-dir", "/dev/null"), 9, "choose another folder with --data-dir"),
    (("stop",), 3, "`legation up` starts one"),
    (("sessions", "new", "rehearsal", "hi", "--skil", "x"), 2, "Did you mean --skill?"),
    (("status", "--jsn"), 2, "Did you mean --json?"),
]


@pytest.mark.parametrize(("argv", "code", "told"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_message_with_the_next_step(
    argv: tuple[str, ...],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("LEGATION_URL", "LEGATION_TOKEN", "LEGATION_DATABASE_URL", "FACTORY_SUPERVISOR_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("rules: [\n")
    assert run([*argv]) == code, capsys.readouterr()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("legation: cannot ")
    assert told in said.err
    assert not list(tmp_path.glob("data/legation/sessions/*"))  # nothing happened, nothing is kept


@pytest.mark.parametrize("argv", [("help",), ("help", "up"), ("help", "sessions", "new")])
def test_help_is_help_as_elsewhere(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*argv]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: {' '.join(('legation', *argv[1:]))}")


def test_what_it_is_called_elsewhere_exists_here(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ELSEWHERE.values():
        assert run([*words.split(), "--help"]) == 0, words
    assert "Traceback" not in capsys.readouterr().err
