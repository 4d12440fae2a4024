"""What the client offers, and what it costs to import."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from legation import client
from legation.client import AsyncLegation, Legation
from legation.client.method import Group
from legation.wire.principal import Role

GROUPS = {
    "": "audit backup call_tool close connect decide find follow_inbox health inbox info look_at me prune ready recordings rotate_keys run "
    "sign_in_link sizes start stop",
    "agents": "install list models modes",
    "sessions": "create get list pages",
    "runs": "get list submit submit_many",
    "templates": "get keep list",
    "approvals": "answer_group approve claim deny escalate follow get list",
    "asks": "ask get use withdraw",
    "grants": "get give list revoke",
    "policy": "explain hits info replay",
    "traces": "export get list verify",
    "streams": "events follow follow_many list",
    "tokens": "create list revoke",
    "users": "change create get list",
    "workspaces": "create get list members remove set_role",
}


@pytest.mark.parametrize("kind", [Legation, AsyncLegation])
@pytest.mark.parametrize("group", GROUPS)
def test_the_offer_is_this_and_the_same_for_both(kind: type[Legation | AsyncLegation], group: str) -> None:
    legation = kind.connect("http://127.0.0.1:1", "t")
    place = getattr(legation, group) if group else legation
    offered = {name for name in dir(place) if not name.startswith("_") and callable(getattr(place, name))}
    assert offered == set(GROUPS[group].split())
    if group:
        assert isinstance(place, Group)


def test_the_module_exports_what_users_need() -> None:
    assert sorted(client.__all__) == ["AsyncLegation", "Legation", "Spawn", "Timeouts"]


def test_a_method_shows_its_parameters_and_what_it_does() -> None:
    with Legation.connect("http://127.0.0.1:1", "t") as legation:
        create = legation.tokens.create
    assert list(inspect.signature(create).parameters) == ["label", "kind", "scopes", "expires_in_days"]
    assert inspect.getdoc(create) == "The answer's `secret` is shown this once."


def test_importing_it_brings_nothing_heavy(tmp_path: Path) -> None:
    seen = subprocess.run(
        [sys.executable, "-c", "import sys, legation.client; print(*sys.modules)"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    heavy = {
        "asyncio",
        "httpx2",
        "httpcore2",
        "ssl",
        "socket",
        "email",
        "subprocess",
        "starlette",
        "cryptography",
    }
    assert not heavy & {name.split(".")[0] for name in seen}


def typed_as_written(legation: Legation, role: Role) -> None:
    """Never called: mypy reads it, and fails where a signature is lost on the way through the descriptors."""
    label: str = legation.tokens.create("x", kind="agent", scopes=["read"]).token.label
    legation.tokens.create("x", kind="nobody")  # type: ignore[arg-type]
    legation.tokens.create()  # type: ignore[call-arg]
    for event in legation.streams.follow("s", after=1):
        event.nonsense  # type: ignore[attr-defined]  # noqa: B018
    legation.workspaces.set_role(label, "u", role)
    legation.approvals.list("pendign")  # type: ignore[arg-type]
    for change in legation.approvals.follow():
        change.approval.nonsense  # type: ignore[attr-defined]  # noqa: B018
    line: bytes = next(legation.traces.export())
    legation.call_tool(label, [line])  # type: ignore[arg-type]


async def typed_as_written_async(legation: AsyncLegation) -> None:
    label: str = (await legation.tokens.create("x")).token.label
    legation.tokens.create(label).token  # type: ignore[attr-defined]  # noqa: B018
    async for _, event in legation.streams.follow_many({"s": 1}):
        event.nonsense  # type: ignore[attr-defined]  # noqa: B018
