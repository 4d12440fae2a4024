"""What an agent is given is what was submitted, no more and no less, on both databases; and none of its secrets is left anywhere."""

import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import MIGRATED
from tests.runs import given_agent
from tests.runs.rig import LIMIT
from tests.runs.test_sandbox import Server, serving
from tests.store.canary import in_folder, logged, new_canary, search, stored
from tests.store.database.databases import BOTH

from legation.client import AsyncLegation
from legation.client.runs import ClientRun
from legation.errors import InvalidParams
from legation.proc.launcher import INHERITED
from legation.runs.sandbox import FOLDER
from legation.store.secrets.sealer import new_key_text
from legation.wire.api.runs import (
    FolderPlace,
    GitPlace,
    McpSecrets,
    RunCleanup,
    RunEnvironment,
    SkillSecret,
)
from legation.wire.api.sessions import LocalMcp, RemoteMcp, Skills, SkillSource

pytestmark = pytest.mark.heavy

# Whatever every child process has, whoever started it (docs/processes.md).
OF_EVERY_CHILD = {*INHERITED, "HOME", "TMPDIR", "PWD", "LC_CTYPE", "LEGATION_CHILD"}


@asynccontextmanager
async def working(
    tmp_path: Path, request: pytest.FixtureRequest, dialect: str = "sqlite"
) -> AsyncIterator[tuple[Server, AsyncLegation]]:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    program = f"{sys.executable} -P {given_agent.__file__} one two"
    (data / "agents.toml").write_text(f'[agents.given]\ncommand = "{program}"\nenv = ["MY_KEY"]\n')
    variables = {"LEGATION_FOLDERS": str(tmp_path)}
    if dialect == "postgres":
        url = request.getfixturevalue("postgres").new_database(MIGRATED)
        keys = ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY")
        variables |= {"LEGATION_DATABASE_URL": url.reveal(), "LEGATION_WORKER_ID": "w1"}
        variables |= {name: new_key_text() for name in keys}
    async with serving(data, **variables) as server:
        token = server.services.process_tokens.add()
        async with AsyncLegation(server.services.address.local_url, token=token.reveal()) as client:
            yield server, client


async def told(run: ClientRun[Any]) -> list[str]:
    events = [each async for each in run.events()]
    said = [json.loads(bytes(each.payload)) for each in events if each.type == "agent-message-chunk"]
    return [each["update"]["content"]["text"] for each in said]


def read(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.replace("\\u00b7", ""))
    return found


@pytest.mark.parametrize("dialect", BOTH)
async def test_it_is_what_was_submitted_and_no_canary_is_left_anywhere(
    dialect: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-servers-own")
    monkeypatch.setenv("MY_KEY", "another-key-of-the-servers-own")
    names = ("key", "header", "variable", "skill", "prompt")
    key, header, variable, skill, prompt = (new_canary(each)[:48] for each in names)
    (tmp_path / "skills" / "tidy").mkdir(parents=True)
    (tmp_path / "skills" / "tidy" / "SKILL.md").write_text("Tidy up.")
    async with working(tmp_path, request, dialect) as (server, client):
        run = await client.run(
            "given",
            prompts=[f"edit {prompt}", "and then rest"],
            keys={"custom": key},
            mcp_servers={
                "there": RemoteMcp(url="https://mcp.example/v1", headers={"X-Team": "blue"}),
                "here": LocalMcp(command="mcp-here", args=("--fast",), env={"LEVEL": "3"}),
            },
            mcp_secrets=[
                McpSecrets(name="there", headers={"Authorization": f"Bearer {header}"}),
                McpSecrets(name="here", env={"HERE_TOKEN": variable}),
            ],
            skills=Skills(sources=[SkillSource(type="local", source=str(tmp_path / "skills"))]),
            skill_secrets=[SkillSecret(name="hidden", text=skill)],
            environment=RunEnvironment(env_vars={"COLOUR": "blue"}),
            policy="read-only",
        )
        ended = await run.wait(LIMIT)
        assert (ended.state, ended.error_reason) == ("succeeded", None)
        first, answered, last = await told(run)
        given = read(first)
        assert given["prompt"] == f"edit {prompt}\n\nand then rest"
        assert given["argv"] == ["one", "two"]
        own = {name: value for name, value in given["env"].items() if name not in OF_EVERY_CHILD}
        assert own == {"MY_KEY": key, "COLOUR": "blue"}
        assert given["mcp"] == [
            {
                "type": "http",
                "name": "there",
                "url": "https://mcp.example/v1",
                "headers": [
                    {"name": "X-Team", "value": "blue"},
                    {"name": "Authorization", "value": f"Bearer {header}"},
                ],
            },
            {
                "name": "here",
                "command": "mcp-here",
                "args": ["--fast"],
                "env": [{"name": "LEVEL", "value": "3"}, {"name": "HERE_TOKEN", "value": variable}],
            },
        ]
        assert {name: text for name, text in given["skills"].items() if name.startswith(".claude/")} == {
            ".claude/skills/tidy/SKILL.md": "Tidy up.",
            ".claude/skills/hidden/SKILL.md": skill,
        }
        # Its policy denies what the one in force would have asked somebody about.
        assert "reject_once" in answered
        # What it says in clear is hidden where it was read.
        assert search({"said": last.encode()}, [key, header, variable]) == []
        home = Path(given["env"]["HOME"])
        assert home.is_relative_to(server.data_dir / FOLDER / run.id)
        assert server.left() == []
        places = {
            **await stored(server.services.database, request),  # type: ignore[arg-type]
            **in_folder(server.data_dir),
            "log": logged(caplog),
        }
    assert search(places, [key, header, variable, skill, prompt]) == []
    assert search(in_folder(tmp_path / "data"), [key, header, variable, skill, prompt]) == []


async def test_what_cannot_be_given_is_refused_and_never_passed_over(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with working(tmp_path, request) as (_, client):
        for words, more in (
            ("cannot install packages", {"environment": RunEnvironment(packages={"npm": ["left-pad"]})}),
            ("cannot limit the network", {"environment": RunEnvironment(networking="limited")}),
            ("cannot run given under that policy", {"policy": "no-such-policy"}),
            ("cannot clone from there", {"workspace": GitPlace(url="ext::sh -c touch% /tmp/x")}),
            ("cannot clone from there", {"workspace": GitPlace(url="/etc")}),
            (
                "cannot check out that ref",
                {"workspace": GitPlace(url="https://host.example/a.git", ref="--orphan")},
            ),
            (
                "cannot put a secret skill into a folder that stays",
                {
                    "workspace": FolderPlace(path=str(tmp_path)),
                    "skill_secrets": [SkillSecret(name="s", text="x")],
                },
            ),
            (
                "cannot put a secret skill into a folder that stays",
                {"cleanup": RunCleanup(retain=True), "skill_secrets": [SkillSecret(name="s", text="x")]},
            ),
        ):
            with pytest.raises(InvalidParams, match=words):
                await client.run("given", "go", keys={"custom": "a-key-of-mine"}, **more)


async def test_runs_work_in_served_folders_and_in_none_of_legations_own(
    tmp_path: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("canary-of-a-path")
    (tmp_path / "served").mkdir()
    (tmp_path / "link").symlink_to(outside)
    async with working(tmp_path, request) as (server, client):
        for folder, wanted in (
            (tmp_path / "served", "succeeded"),
            (outside, "failed"),
            (tmp_path / "link", "failed"),
            (server.data_dir, "failed"),
            (server.data_dir / "runs", "failed"),
            (tmp_path / "absent", "failed"),
        ):
            place = FolderPlace(path=str(folder))
            run = await client.run("given", "go", keys={"custom": "a-key-of-mine"}, workspace=place)
            ended = await run.wait(LIMIT)
            assert ended.state == wanted, (folder, ended)
            if wanted == "failed":
                assert (ended.error_class, ended.error_code) == ("tenant_permanent", "workspace")
                assert "canary" not in str(ended.error_reason)
            else:
                assert read((await told(run))[0])["cwd"] == str(folder)


async def test_a_repository_is_cloned_at_its_ref_and_stays_where_that_is_asked_for(
    tmp_path: Path, request: pytest.FixtureRequest, git_repository: Path
) -> None:
    async with working(tmp_path, request) as (server, client):
        for ref, files in ((None, {"a.txt", "b.txt"}), ("first", {"a.txt"})):
            place = GitPlace(url=f"file://{git_repository}", ref=ref)
            run = await client.run(
                "given",
                "go",
                keys={"custom": "a-key-of-mine"},
                workspace=place,
                cleanup=RunCleanup(retain=ref is not None),
            )
            ended = await run.wait(LIMIT)
            assert ended.state == "succeeded", ended
            assert {*read((await told(run))[0])["files"]} - {".git"} == files
        assert ended.cleanup == "skipped"
        assert server.left() == [run.id]
        (kept,) = (server.data_dir / FOLDER / run.id).iterdir()
        assert (kept.name, (kept / "a.txt").exists()) == ("work", True)
        found = await server.rig.run(run.id)
        assert found.secret_id is None
        rows = await server.services.database.read(_vault)
        assert rows == 0
        for url, ref in ((f"file://{tmp_path}/nowhere", None), (f"file://{git_repository}", "no-such-ref")):
            place = GitPlace(url=url, ref=ref)
            bad = await client.run("given", "go", keys={"custom": "a-key-of-mine"}, workspace=place)
            ended = await bad.wait(LIMIT)
            assert (ended.state, ended.error_class) == ("failed", "tenant_permanent")


def _vault() -> Any:
    from legation.store.database.transaction import parse

    (query,) = parse("-- name: many\nselect count(*) as many from vault_bundle;")
    (row,) = yield query()
    return row["many"]


@pytest.fixture
def git_repository(tmp_path: Path) -> Path:
    import subprocess

    folder = tmp_path / "repository"
    folder.mkdir()

    def git(*argv: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(
            ["git", *who, *argv],
            cwd=folder,
            check=True,
            timeout=60,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )

    git("init", "-q")
    for name, tag in (("a.txt", "first"), ("b.txt", "second")):
        (folder / name).write_text(name)
        git("add", ".")
        git("commit", "-qm", name)
        git("tag", tag)
    return folder
