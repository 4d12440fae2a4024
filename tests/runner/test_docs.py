"""docs/runner.md: each example is a report, and the receiver runs."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.cli.command import environment, rehearse
from tests.runner.caller_server import TOKEN
from tests.runner.test_runner import config_of, started

from legation.cli.runner import runner
from legation.runner.config import KNOWN_FIELDS
from legation.wire.callbacks import (
    CommandKind,
    ReportKind,
    RunnerCommand,
    read_commands,
    read_permission,
    read_report,
    read_resolved,
)

PAGE = (Path(__file__).parents[2] / "docs" / "runner.md").read_text()
KINDS = get_args(ReportKind)


def block(language: str, name: str) -> str:
    found = re.search(rf"```{language} {name}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, name
    return found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_report_has_an_example(kind: str) -> None:
    report = read_report(json.dumps(json.loads(block("json", kind))).encode())
    assert report.kind == kind
    assert report.is_terminal == kind.startswith("prompt_")
    if kind == "permission_request":
        assert read_permission(report).action.tool == "Write"
    if kind == "permission_resolved":
        assert read_resolved(report).outcome == "approved"


def test_each_command_has_an_example() -> None:
    found = read_commands(block("json", "commands").encode())
    assert {each.kind for each in found if isinstance(each, RunnerCommand)} == set(get_args(CommandKind))
    assert [each.id for each in found] == [*range(1, len(found) + 1)]


def test_every_field_of_the_configuration_is_on_the_page() -> None:
    assert [name for name in KNOWN_FIELDS if f"`{name}`" not in PAGE] == []


def test_the_exit_codes_of_the_page_are_those_of_the_help() -> None:
    codes = re.findall(r"^\| (\d[\d, ]*) \|", PAGE, re.MULTILINE)
    told = " ".join((runner.__doc__ or "").split())
    assert codes
    assert [code for code in ", ".join(codes).split(", ") if not re.search(rf"\b{code}\b", told)] == []


@pytest.mark.heavy
@pytest.mark.parametrize("outcome", [(), ("approved",)])
async def test_the_receiver_of_the_page_takes_what_a_runner_reports(
    tmp_path: Path, outcome: tuple[str, ...]
) -> None:
    program = block("python", "receiver")
    assert len([line for line in program.splitlines() if line]) <= 45
    receiver = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, TOKEN, *outcome),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(tmp_path),
    )
    assert receiver.stdout is not None
    try:
        url = (await receiver.stdout.readline()).decode().strip()
        prompt = rehearse("say one", "ask write made.txt here", "say two")
        async with started(tmp_path, config_of(url, prompt, permissions="route")) as run:
            assert (await run.ended())[0] == 0
        lines: list[bytes] = []
        async with asyncio.timeout(60):
            while not lines or lines[-1] != b"prompt_complete\n":
                lines.append(await receiver.stdout.readline())
    finally:
        receiver.kill()
        await receiver.communicate()
    assert lines.count(b"permission_request\n") == lines.count(b"permission_resolved\n") == 1
    assert (tmp_path / "work" / "made.txt").exists() == bool(outcome)
    texts = [json.loads(line)["content"]["text"] for line in lines[:-1] if b"agent_message_chunk" in line]
    assert "one" in "".join(texts)
