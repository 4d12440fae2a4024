"""Trusting folders over HTTP, and what the server's hosts and launches make of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.server.rig import Rig, open_rig

from legation.agents.catalogue.entries import Stance
from legation.errors import ConfigInvalid


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    git = tmp_path / "served" / "project" / ".git"
    for part in ("objects", "refs"):
        (git / part).mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    async with open_rig("sqlite", tmp_path / "data", request, folders=[str(tmp_path / "served")]) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "served" / "project"


async def call(rig: Rig, method: str, path: str, headers: dict[str, str], body: Any = None) -> Any:
    answer = await rig.client.request(method, path, headers=headers, json=body)
    return answer.status_code, answer.json() if answer.content else None


async def test_a_person_trusts_a_folder_and_no_more(rig: Rig, project: Path) -> None:
    owner = await rig.bearer(rig.people["owner"])
    host = await rig.services.hosts.host("local")
    assert not host.options.trusts(str(project))

    status, given = await call(rig, "POST", "/v1/trust", owner, {"folder": str(project)})

    assert status == 201
    assert (given["folder"], given["state"]) == (str(project), "trusted")
    assert given["trustedBy"].startswith("token:")
    assert host.options.trusts(str(project))
    assert await call(rig, "GET", "/v1/trust", owner) == (200, {"items": [given], "next": None})
    again, same = await call(rig, "POST", "/v1/trust", owner, {"folder": str(project)})
    assert (again, same) == (201, given)

    assert await call(rig, "DELETE", f"/v1/trust/{given['id']}", owner) == (204, None)
    assert not host.options.trusts(str(project))
    assert (await call(rig, "DELETE", f"/v1/trust/{given['id']}", owner))[0] == 404
    actions = [each for each in await rig.actions() if each.startswith("folder.")]
    assert actions == ["folder.trusted", "folder.trusted", "folder.untrusted"]


async def test_the_audit_log_has_no_path(rig: Rig, project: Path) -> None:
    owner = await rig.bearer(rig.people["owner"])
    await call(rig, "POST", "/v1/trust", owner, {"folder": str(project)})
    (row,) = await rig.rows("select * from audit where action = 'folder.trusted'")
    assert str(project) not in repr(dict(row))


async def test_neither_an_agent_nor_a_supervisor_trusts(rig: Rig, project: Path) -> None:
    owner = rig.people["owner"]
    _, given = await call(rig, "POST", "/v1/trust", await rig.bearer(owner), {"folder": str(project)})
    for headers in (
        await rig.bearer(owner, "read", "approve", kind="supervisor"),
        await rig.bearer(owner, "read", "approve", kind="agent"),
        await rig.bearer(rig.people["operator"]),
    ):
        assert (await call(rig, "POST", "/v1/trust", headers, {"folder": str(project)}))[0] == 403
        assert (await call(rig, "DELETE", f"/v1/trust/{given['id']}", headers))[0] == 403


async def test_another_workspace_sees_and_trusts_nothing_of_it(rig: Rig, project: Path) -> None:
    owner = await rig.bearer(rig.people["owner"])
    stranger = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    _, given = await call(rig, "POST", "/v1/trust", owner, {"folder": str(project)})
    assert await call(rig, "GET", "/v1/trust", stranger) == (200, {"items": [], "next": None})
    assert (await call(rig, "DELETE", f"/v1/trust/{given['id']}", stranger))[0] == 404
    assert not (await rig.services.hosts.host(rig.other)).options.trusts(str(project))


async def test_only_folders_that_are_served_can_be_trusted(rig: Rig, project: Path, tmp_path: Path) -> None:
    owner = await rig.bearer(rig.people["owner"])
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "link").symlink_to(outside)
    for folder in (outside, tmp_path / "none", project / "link"):
        status, _ = await call(rig, "POST", "/v1/trust", owner, {"folder": str(folder)})
        assert status == 403, folder
    assert [each for each in await rig.actions() if each.startswith("folder.")] == []


async def test_a_list_that_cannot_be_read_is_told_where_it_is_used(rig: Rig, project: Path) -> None:
    owner = await rig.bearer(rig.people["owner"])
    await call(rig, "POST", "/v1/trust", owner, {"folder": str(project)})
    (rig.services.settings.data_dir / "trust" / "local.json").write_text("nonsense")
    status, problem = await call(rig, "GET", "/v1/trust", owner)
    assert status >= 400
    assert "no list of trusted folders" in problem["detail"]
    with pytest.raises(ConfigInvalid, match="no list of trusted folders"):
        await rig.services.hosts.launcher.launch("local", "rehearsal", project)


async def test_a_launch_is_told_whether_its_folder_is_trusted(
    rig: Rig, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = rig.services.hosts.launcher
    plain = launcher.catalogue.start
    yes = Stance(args=("trusted", "{folder}"), env={"STANCE": "trusted"})
    no = Stance(args=("untrusted", "{folder}"), env={"STANCE": "untrusted"})
    monkeypatch.setattr(
        launcher.catalogue, "start", lambda name: replace(plain(name), trusted=yes, untrusted=no)
    )
    before = await launcher.launch("local", "rehearsal", project)
    owner = await rig.bearer(rig.people["owner"])
    await call(rig, "POST", "/v1/trust", owner, {"folder": str(project)})
    after = await launcher.launch("local", "rehearsal", project)
    assert [each.definition.env["STANCE"] for each in (before, after)] == ["untrusted", "trusted"]
    assert before.definition.args[-2:] == ("untrusted", f'"{project}"')
    assert after.definition.args[-2:] == ("trusted", f'"{project}"')


async def test_what_the_local_cli_trusts_is_the_owners_by_name(rig: Rig, project: Path) -> None:
    cli = {"authorization": f"Bearer {rig.services.own_token.reveal()}"}
    _, given = await call(rig, "POST", "/v1/trust", cli, {"folder": str(project)})
    assert given["trustedBy"] == f"user:{rig.services.installed.user}"
    assert given["trustedByName"] == "owner"
    _, listed = await call(rig, "GET", "/v1/trust", cli)
    assert listed["items"] == [given]
