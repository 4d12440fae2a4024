from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tools.schemas.__main__ import main
from tools.schemas.acp import PACKAGE

from tools.schemas import EXTRACTORS, committed

NOBODY = {"HOME": "/nonexistent", "PATH": "/nonexistent"}
TYPE = {"type": "object", "properties": {"sessionId": {"type": "string"}}, "x-side": "agent", "x-method": "m"}


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    """A package of the protocol's SDK with a schema of one type."""
    package = tmp_path / "node_modules" / PACKAGE
    (package / "schema" / "v1").mkdir(parents=True)
    (package / "package.json").write_text('{"version": "9.0.0"}')
    (package / "schema" / "v1" / "schema.json").write_text(json.dumps({"$defs": {"PromptRequest": TYPE}}))
    return tmp_path


def test_without_any_program_the_committed_ones_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"], NOBODY) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(EXTRACTORS)
    codex = committed("codex").version
    assert f"codex: not on this machine, so the inventory of {codex} stands; " in "\n".join(said)


def test_one_that_is_named_and_not_here_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "codex"], NOBODY) == 3
    said = capsys.readouterr().err
    assert said.startswith(
        "cannot find the program or package of codex on this machine; install @openai/codex"
    )


def test_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", "emacs"], NOBODY) == 2
    assert (
        "it is not one of acp, acp-unstable, amp, claude, codex, codex-experimental, opencode"
        in capsys.readouterr().err
    )


def test_extract_writes_what_check_then_compares(
    sdk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["extract", "acp", "--in", str(sdk), "--out", str(out)], NOBODY) == 0
    assert capsys.readouterr().out == "acp 9.0.0: written, 2 definitions\n"
    assert json.loads((out / "acp.json").read_bytes()) == {
        "agent": "acp",
        "version": "9.0.0",
        "source": f"{PACKAGE}: schema/v1/schema.json",
        "definitions": {
            "PromptRequest": {"sessionId?": "string"},
            "methods": {"agent m params": "PromptRequest"},
        },
    }


def test_check_names_what_changed_and_what_of_ours_does_not_fit_it(
    sdk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "acp", "--in", str(sdk)], NOBODY) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"acp {committed('acp').version} and 9.0.0: ")
    assert "  ToolCall is gone" in said
    assert "  PromptRequest.prompt is gone; it was ContentBlock[]" in said
    assert "  PromptRequest.sessionId may be absent now" in said
    assert "  Legation's PromptRequest.sessionId: may be absent, and ours requires it" in said


FAKE = f"""#!{sys.executable}
import os, sys
assert os.environ["HOME"] != {os.environ.get("HOME", "")!r}
assert not [name for name in os.environ if name.endswith("_API_KEY")]
if sys.argv[1:] == ["--version"]:
    print("1.2.3 (released some day)")
else:
    print(open({{where!r}}).read())
"""


@pytest.mark.heavy
def test_a_program_on_path_is_asked_in_a_home_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMP_API_KEY", "secret")
    help_text, program = tmp_path / "help", tmp_path / "bin" / "amp"
    help_text.write_text(
        "Commands:\n  login  Log in\nOptions:\n  --new <x>\nEnvironment variables:\n  AMP_URL  x\n"
        "Settings reference:\n  amp.proxy\n"
    )
    program.parent.mkdir()
    program.write_text(FAKE.format(where=str(help_text)))
    program.chmod(0o755)
    environ = {"HOME": str(tmp_path), "PATH": str(program.parent)}
    assert main(["check", "amp"], environ) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"amp {committed('amp').version} and 1.2.3: ")
    assert "  options.--new is new: value" in said
    assert "  options.--stream-json is gone; it was none" in said

    help_text.write_text("another form\n")
    assert main(["check", "amp"], environ) == 6
    assert "cannot read the help of amp: it has another form now" in capsys.readouterr().err
