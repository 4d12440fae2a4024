"""`legation up` and its kin, as their user sees them: real processes, real ports, real faults."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.certificates import make_certificate
from tests.cli.command import LIMIT, environment, json_lines, legation, rehearse
from tests.cli.server_process import Running, running
from tests.postgres import Postgres

from legation.proc.registry import RegisteredChild, listed
from legation.proc.tree import process
from legation.server.sessions.hosts import CHILDREN

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all who change nothing."""
    with running(tmp_path_factory.mktemp("shared")) as up:
        up.line()
        yield up


def test_up_says_one_line_and_everything_else_finds_it(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        link = re.fullmatch(
            r"Legation is up: http://legation-\w+\.localhost:(\d+)/sign-in#(\S+)\n", up.line()
        )
        assert link, "one line, with a link"
        status = legation(tmp_path, "status", "--json")
        assert status.returncode == 0, status.stderr
        (told,) = json_lines(status.stdout)
        assert (told["up"], told["ready"], told["url"], told["pid"]) == (
            True,
            True,
            f"http://127.0.0.1:{link[1]}",
            up.process.pid,
        )
        assert (up.data_dir / "server.json").stat().st_mode & 0o777 == 0o600
        assert up.data_dir.stat().st_mode & 0o777 == 0o700
        assert "up ·" in legation(tmp_path, "status").stdout
        stopped = legation(tmp_path, "stop")
        assert (stopped.returncode, stopped.stdout) == (0, f"stopped (pid {up.process.pid})\n")
        assert up.process.wait(LIMIT) == 0
    assert not (up.data_dir / "server.json").exists()
    down = legation(tmp_path, "status")
    assert down.returncode == 10
    assert "legation up" in down.stdout


def test_the_link_signs_in_once(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        code = up.line().partition("/sign-in#")[2].strip()
        url = up.server_file().url
        with httpx2.Client(base_url=url) as browser:
            assert browser.get("/sign-in").status_code == 200
            assert browser.get("/v1/me").status_code == 401
            headers = {"Sec-Fetch-Site": "same-origin"}
            assert browser.post("/v1/sign-in", json={"code": code}, headers=headers).status_code == 204
            me = browser.get("/v1/me").json()
            assert (me["kind"], me["workspace"], me["level"]) == ("user", "local", 2)
        assert httpx2.post(f"{url}/v1/sign-in", json={"code": code}).status_code == 401


def test_a_day_with_tokens_users_and_workspaces(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        made = legation(tmp_path, "tokens", "new", "ci", "--scope", "read")
        token = made.stdout.strip()
        assert token.startswith("lgn_")
        assert "shown this once" in made.stderr
        url = up.server_file().url
        me = httpx2.get(f"{url}/v1/me", headers={"Authorization": f"Bearer {token}"}).json()
        assert me["scopes"] == ["read"]
        (listed,) = json_lines(legation(tmp_path, "tokens", "--json").stdout)
        assert (listed["label"], listed["hint"]) == ("ci", token[-4:])
        assert legation(tmp_path, "tokens", "revoke", listed["id"]).returncode == 0
        assert httpx2.get(f"{url}/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 401
        assert "revoked" in legation(tmp_path, "tokens").stdout

        (ada,) = json_lines(legation(tmp_path, "users", "new", "Ada", "--role", "operator", "--json").stdout)
        assert "/sign-in#" in legation(tmp_path, "users", "link", ada["id"]).stdout
        assert "Ada" in legation(tmp_path, "workspaces", "members").stdout
        assert "disabled" in legation(tmp_path, "users", "disable", ada["id"]).stdout
        assert "active" in legation(tmp_path, "users", "enable", ada["id"]).stdout
        assert legation(tmp_path, "workspaces", "remove", ada["id"]).returncode == 0

        (extra,) = json_lines(legation(tmp_path, "workspaces", "new", "Second", "--json").stdout)
        names = [row["name"] for row in json_lines(legation(tmp_path, "workspaces", "--json").stdout)]
        assert names == ["Local", "Second"]
        members = legation(tmp_path, "workspaces", "members", "--workspace", extra["id"], "--json")
        assert [row["role"] for row in json_lines(members.stdout)] == ["owner"]
        there = legation(tmp_path, "tokens", "new", "there", "--workspace", extra["id"]).stdout.strip()
        me = httpx2.get(f"{url}/v1/me", headers={"Authorization": f"Bearer {there}"}).json()
        assert me["workspace"] == extra["id"]


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("tokens", "revoke", "tok_nothing"), 3, "cannot find"),
        (("tokens", "new", "x", "--scope", "everything"), 2, "everything"),
        (("users", "disable", "usr_nobody"), 3, "cannot find"),
        (("workspaces", "members", "--workspace", "ws_nowhere"), 3, "cannot find the workspace"),
        (("tokens", "ls"), 2, 'there is no "ls" here'),
        (("tokns",), 2, 'Did you mean "tokens"?'),
        (("users", "new", "\n"), 2, "name"),
        (("restore", "nothing.tar"), 3, "no such file"),
    ],
)
def test_a_mistake_is_told_in_one_line(shared: Running, argv: tuple[str, ...], code: int, says: str) -> None:
    done = legation(shared.home, *argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.startswith("legation: cannot")
    assert done.stderr.count("\n") == 1


def test_the_port_and_everything_else_is_kept(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        first = up.server_file()
        legation(tmp_path, "tokens", "new", "kept")
        assert up.stop() == 0
    again = Running(tmp_path, "up")
    try:
        again.line()
        second = again.server_file()
        assert second.url == first.url
        assert second.token != first.token
        assert "kept" in legation(tmp_path, "tokens").stdout
        refused = httpx2.get(f"{second.url}/v1/me", headers={"Authorization": f"Bearer {first.token}"})
        assert refused.status_code == 401
    finally:
        again.stop(signal.SIGKILL)


def test_status_says_that_an_edit_of_the_policies_is_not_in_force(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("name: p\nrules: [{action: deny}]\n")
    with running(tmp_path, "up", "--policy", str(policy)) as up:
        up.line()
        assert "not in force" not in legation(tmp_path, "status").stdout
        policy.write_text("name: p\nrules: [{action: denny}]\n")
        deadline = time.monotonic() + LIMIT
        while "denny" not in (status := legation(tmp_path, "status")).stdout:
            assert time.monotonic() < deadline
        assert status.returncode == 0  # what was in force still is
        assert "not in force" in status.stdout
        (told,) = json_lines(legation(tmp_path, "status", "--json").stdout)
        assert "did you mean 'deny'?" in told["policyProblem"]


def test_kill_9_loses_nothing_that_was_told(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        made = legation(tmp_path, "tokens", "new", "before the crash")
        up.stop(signal.SIGKILL)
    status = legation(tmp_path, "status")
    assert status.returncode == 10
    assert "gone" in status.stdout
    with running(tmp_path) as up:
        up.line()
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert httpx2.get(f"{up.server_file().url}/v1/me", headers=headers).status_code == 200


@pytest.mark.parametrize("command", ["up", "server"])
def test_a_second_one_on_the_folder_is_refused_with_the_pid_of_the_first(
    tmp_path: Path, command: str
) -> None:
    with running(tmp_path) as up:
        up.line()
        second = legation(tmp_path, command, "--port", "0")
        assert second.returncode == 5
        assert f"process {up.process.pid} owns it" in second.stderr
        assert second.stderr.count("\n") == 1
        assert legation(tmp_path, "status").returncode == 0


def test_a_taken_port_is_named_and_nothing_is_damaged(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        refused = legation(tmp_path, "up", "--port", port)
        assert refused.returncode == 5
        assert refused.stderr == (
            f"legation: cannot listen on 127.0.0.1:{port}: another program does; stop that one, or choose another "
            "with --port\n"
        )
    with running(tmp_path, "up", "--port", port) as up:
        assert port in up.line()


def test_a_kept_port_that_somebody_took_is_not_silently_given_up(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        port = int(up.server_file().url.rpartition(":")[2])
        up.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        refused = legation(tmp_path, "up")
    assert refused.returncode == 5
    assert f"127.0.0.1:{port}" in refused.stderr


def test_others_are_not_let_in_without_a_token(tmp_path: Path) -> None:
    refused = legation(
        tmp_path, "up", "--host", "0.0.0.0", "--token", "short", "--tls-key", "/nowhere/key.pem"
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n- ") == 3  # all at once
    assert "short" not in refused.stderr.replace("shorter", "")
    assert not (tmp_path / ".local").exists()


def test_a_token_beside_no_token_is_the_owners(tmp_path: Path) -> None:
    """With the words of sandbox-agent's server, which programs that start it may say."""
    token = "t" * 30
    with running(tmp_path, "server", "--no-token", "--no-telemetry", LEGATION_TOKEN=token) as server:
        server.line()
        url, headers = server.server_file().url, {"Authorization": f"Bearer {token}"}
        assert httpx2.get(f"{url}/v1/sessions").status_code == 200
        assert httpx2.get(f"{url}/v1/tokens").status_code == 403
        assert httpx2.get(f"{url}/v1/tokens", headers=headers).status_code == 200


def test_with_postgres_every_missing_key_is_named_at_once(tmp_path: Path) -> None:
    url = "postgresql://u:canary-pw@127.0.0.1:1/x"
    refused = legation(tmp_path, "server", LEGATION_DATABASE_URL=url)
    assert refused.returncode == 2
    for name in ("LEGATION_VAULT_KEY", "LEGATION_TOKEN_PEPPER", "LEGATION_COOKIE_KEY"):
        assert name in refused.stderr
    assert "canary" not in refused.stderr
    assert not (tmp_path / ".local").exists()


def test_a_wrong_vault_key_is_told_and_the_right_one_works_again(tmp_path: Path) -> None:
    key, other = (legation(tmp_path, "keys", "new").stdout.strip() for _ in range(2))
    with running(tmp_path, LEGATION_VAULT_KEY=key) as up:
        assert "is up" in up.line()
        up.stop()
    refused = legation(tmp_path, "up", "--port", "0", LEGATION_VAULT_KEY=other)
    assert refused.returncode == 2
    assert "vault_key" in refused.stderr.lower()
    assert key not in refused.stderr
    assert other not in refused.stderr
    with running(tmp_path, LEGATION_VAULT_KEY=key) as up:
        assert "is up" in up.line()


def test_a_read_only_folder_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if os.geteuid() == 0:  # root writes whatever the mode says: a mount of its own does it
        mount = ["unshare", "-m", "sh", "-c", f'mount --bind -o ro {folder} {folder} && exec "$@"', "sh"]
        if subprocess.run([*mount, "true"], check=False, capture_output=True).returncode:
            pytest.skip("cannot make a read-only mount here")
    else:
        mount = []
        folder.chmod(0o500)
    refused = subprocess.run(
        [*mount, sys.executable, "-m", "legation", "up", "--data-dir", str(folder), "--port", "0"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert refused.returncode == 9
    assert refused.stderr.startswith(f"legation: cannot write to {folder}: ")
    assert "--data-dir" in refused.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "room", [2048, 20_000, 40_000, 70_000, 100_000]
)  # fails here and there on the way up
def test_a_full_disk_at_the_start_is_told(tmp_path: Path, room: int) -> None:
    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    refused = subprocess.run(
        [sys.executable, "-m", "legation", "up", "--port", "0"],
        env=environment(
            tmp_path, PYTHONDONTWRITEBYTECODE="1"
        ),  # half a file of bytecode would break the next
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        preexec_fn=no_room,
    )
    assert refused.returncode == 9, refused.stdout
    assert refused.stderr.startswith("legation: cannot ")
    assert refused.stderr.count("\n") == 1
    with running(tmp_path) as up:
        assert "is up" in up.line()


def test_backup_and_restore(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        secret = legation(tmp_path, "tokens", "new", "of the backup").stdout.strip()
        done = legation(tmp_path, "backup", "copy.tar")
        assert "keys in agents.toml can be read in it" in done.stdout + done.stderr
        assert done.returncode == 0, done.stderr
        assert "keys are not in it" in done.stdout
        assert (tmp_path / "copy.tar").stat().st_mode & 0o777 == 0o600
        assert legation(tmp_path, "backup", "copy.tar").returncode == 5
        assert "legation stop" in legation(tmp_path, "restore", "copy.tar", "--replace").stderr
        up.stop()
    assert "--replace" in legation(tmp_path, "restore", "copy.tar").stderr
    restored = legation(tmp_path, "restore", "copy.tar", "--replace")
    assert restored.returncode == 0, restored.stderr
    with running(tmp_path) as up:
        up.line()
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx2.get(f"{up.server_file().url}/v1/me", headers=headers).status_code == 200


def test_a_backup_holds_the_agents_and_policies_in_force(tmp_path: Path) -> None:
    """Sealed, to a machine that has none of them: agents.toml is in force again, and of the rest it is said where it is."""
    data, etc = tmp_path / ".local/share/legation", tmp_path / "etc"
    data.mkdir(parents=True)
    (etc / "rules").mkdir(parents=True)
    (etc / "secret").write_text("a passphrase that is long enough")
    (etc / "secret").chmod(0o600)
    stanza = '[agents.mine]\ncommand = "cat"\n'
    (data / "agents.toml").write_text(stanza)
    rules = "name: canary-policy\nrules:\n- {id: all, action: deny}\n"
    (etc / "rules/mine.yaml").write_text(rules)
    (etc / "tools.yaml").write_text("tools:\n- {name: a, url: 'http://127.0.0.1:1/'}\n")
    (etc / "legation.toml").write_text(f'policy = "{etc}/rules"\ntools = "{etc}/tools.yaml"\n')
    env: dict[str, Any] = {"LEGATION_CONFIG": str(etc / "legation.toml")}
    sealed = ("--passphrase-file", str(etc / "secret"))
    with running(tmp_path, **env) as up:
        up.line()
        for name, flags in (("plain.tar", ()), ("keys.tar", ("--with-keys",)), ("sealed.legation", sealed)):
            done = legation(tmp_path, "backup", name, *flags, **env)
            assert done.returncode == 0, done.stderr
        up.stop()
    with tarfile.open(tmp_path / "plain.tar") as tar:
        assert {name for name in tar.getnames() if name.startswith("config/")} == {
            "config/agents.toml",
            "config/policy/mine.yaml",
            "config/tools/tools.yaml",
        }
    with tarfile.open(tmp_path / "keys.tar") as tar:
        assert "config/legation.toml" in tar.getnames()  # it may hold keys, and goes with them
    assert b"canary-policy" not in (tmp_path / "sealed.legation").read_bytes()
    shutil.rmtree(data)
    shutil.rmtree(etc / "rules")
    restored = legation(tmp_path, "restore", "sealed.legation", *sealed)
    assert restored.returncode == 0, restored.stderr
    assert (data / "agents.toml").read_text() == stanza
    kept = data / "config/policy/mine.yaml"
    assert kept.read_text() == rules
    assert not (etc / "rules").exists()
    said = " ".join(restored.stdout.split())
    assert f"{etc}/rules/mine.yaml is not there; what the backup has of it is {kept}" in said
    assert "tools.yaml" not in said  # it is as it was
    assert "canary-policy" in legation(tmp_path, "policy", "check", str(kept)).stdout
    assert "mine" in legation(tmp_path, "agents").stdout


def test_a_restore_leaves_nothing_that_is_served(tmp_path: Path) -> None:
    """The old data, with keys that are in use: not in a listing, not in a file, and named by `doctor`."""
    with running(tmp_path) as up:
        up.line()
        assert legation(tmp_path, "backup", "copy.tar").returncode == 0
        up.stop()
    keys = (tmp_path / ".local/share/legation/keys.json").read_bytes()
    restored = legation(tmp_path, "restore", "copy.tar", "--replace")
    assert restored.returncode == 0, restored.stderr
    left = [path for path in tmp_path.rglob("keys.json") if path.read_bytes() == keys]
    assert len(left) == 2
    older = tmp_path / ".local/share/legation.before-restore-1"  # where an earlier release left it
    older.mkdir()
    (older / "keys.json").write_bytes(keys)
    # The folder above them is listed, so that only what they are keeps them closed.
    with running(tmp_path, "up", "--folder", str(older.parent)) as up:
        up.line()
        url, headers = up.server_file().url, {"Authorization": f"Bearer {up.server_file().token}"}
        for path in (*left, older / "keys.json"):
            answer = httpx2.get(f"{url}/v1/fs/file", params={"path": str(path)}, headers=headers)
            assert answer.status_code == 403, path
        answer = httpx2.get(f"{url}/v1/fs/entries", params={"path": str(older.parent)}, headers=headers)
        assert answer.json() == []
    told = legation(tmp_path, "doctor").stdout
    assert "limited old data: a restore or a backup left" in " ".join(told.split())
    assert "legation/replaced/" in told
    assert str(older) in told
    assert "still in use" in restored.stdout


def test_a_restore_makes_new_keys_if_asked(tmp_path: Path) -> None:
    data = tmp_path / ".local/share/legation"
    with running(tmp_path) as up:
        up.line()
        secret = legation(tmp_path, "tokens", "new", "of the backup").stdout.strip()
        assert legation(tmp_path, "backup", "copy.tar", "--with-keys").returncode == 0
        up.stop()
    before = json.loads((data / "keys.json").read_text())
    refused = legation(
        tmp_path, "restore", "copy.tar", "--replace", "--new-keys", LEGATION_COOKIE_KEY=before["cookie"]
    )
    assert "given as settings" in refused.stderr
    restored = legation(tmp_path, "restore", "copy.tar", "--replace", "--new-keys")
    assert restored.returncode == 0, restored.stderr
    assert "new keys" in restored.stdout
    after = json.loads((data / "keys.json").read_text())
    assert not {*before["vault"], before["cookie"]} & {*after["vault"], after["cookie"]}
    with running(tmp_path) as up:
        up.line()
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx2.get(f"{up.server_file().url}/v1/me", headers=headers).status_code == 200


def test_a_backup_is_sealed_with_a_passphrase(tmp_path: Path) -> None:
    phrase = tmp_path / "phrase"
    phrase.write_text("correct horse battery staple\n")
    phrase.chmod(0o600)
    with running(tmp_path) as up:
        up.line()
        plain = legation(tmp_path, "backup", "plain.tar")
        assert "prompts" in plain.stdout
        assert "--passphrase-file" in plain.stdout
        done = legation(tmp_path, "backup", "sealed", "--passphrase-file", "phrase")
        assert done.returncode == 0, done.stderr
        up.stop()
    assert b"SQLite format" in (tmp_path / "plain.tar").read_bytes()
    assert b"SQLite format" not in (tmp_path / "sealed").read_bytes()
    assert (tmp_path / "sealed").stat().st_mode & 0o777 == 0o600
    assert "--passphrase-file" in legation(tmp_path, "restore", "sealed", "--replace").stderr
    phrase.write_text("correct horse battery stable\n")
    wrong = legation(tmp_path, "restore", "sealed", "--replace", "--passphrase-file", "phrase")
    assert "passphrase is not the one" in wrong.stderr
    phrase.write_text("correct horse battery staple\n")
    restored = legation(tmp_path, "restore", "sealed", "--replace", "--passphrase-file", "phrase")
    assert restored.returncode == 0, restored.stderr
    with running(tmp_path) as up:
        assert "is up" in up.line()


def test_keys_are_rotated(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        before = (up.data_dir / "keys.json").read_text()
        assert legation(tmp_path, "backup", "before.tar").returncode == 0
        done = legation(tmp_path, "keys", "rotate")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("now key ")
        assert (up.data_dir / "keys.json").read_text() != before
        up.stop()
    with running(tmp_path) as up:
        assert "is up" in up.line()
        up.stop()
    # A backup from before: nothing in it is sealed, so the key of today will do.
    assert legation(tmp_path, "restore", "before.tar", "--replace").returncode == 0
    with running(tmp_path) as up:
        assert "is up" in up.line()


def test_rotations_at_once_do_no_harm(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        file = up.server_file()
        headers = {"Authorization": f"Bearer {file.token}"}
        with ThreadPoolExecutor(8) as pool:
            rotate = partial(httpx2.post, f"{file.url}/v1/keys/rotate", headers=headers, timeout=LIMIT)
            codes = [future.result().status_code for future in [pool.submit(rotate) for _ in range(8)]]
        assert set(codes) <= {200, 409}
        assert 200 in codes
        up.stop()
    with running(tmp_path) as up:
        assert "is up" in up.line()


def test_a_server_with_tls_and_a_public_name_is_found_by_its_commands(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "legation.example")
    argv = ("--tls-cert", str(certificate), "--tls-key", str(key), "--public-url", "https://legation.example")
    with running(tmp_path, "up", *argv) as up:
        assert "https://legation.example/sign-in#" in up.line()
        assert up.server_file().url.startswith("https://127.0.0.1:")
        assert legation(tmp_path, "status").returncode == 0
        assert legation(tmp_path, "stop").returncode == 0


def test_keys_and_certificates_that_are_none_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("nothing")
    pem = str(tmp_path / "not.pem")
    keys = {f"LEGATION_{name}": "x" for name in ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY")}
    refused = subprocess.run(
        [sys.executable, "-m", "legation", "up", "--tls-cert", pem, "--tls-key", pem],
        env=environment(tmp_path, **keys),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n- ") == 4


def test_stop_force_kills_one_that_does_not_answer(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        up.process.send_signal(signal.SIGSTOP)
        stopping = legation(tmp_path, "stop", "--force")
        assert (stopping.returncode, stopping.stdout) == (0, f"stopped (pid {up.process.pid})\n")


def test_server_takes_a_token_and_ends_with_its_parent(tmp_path: Path) -> None:
    token = "a-token-of-the-sdk-24-bytes"
    process = subprocess.Popen(
        [sys.executable, "-m", "legation", "server", "--port", "0", "--exit-with-parent"],
        env=environment(tmp_path, LEGATION_TOKEN=token),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        while not (found := re.search(r'listening on (http://[^\s"]+)', process.stderr.readline())):
            pass
        me = httpx2.get(f"{found[1]}/v1/me", headers={"Authorization": f"token {token}"}).json()
        assert "instance" in me["scopes"]
        process.stdin.close()
        assert process.wait(LIMIT) == 0
        assert token not in process.stderr.read()
    finally:
        process.kill()
        process.wait(LIMIT)
        process.stderr.close()


def test_it_ends_within_a_second_with_streams_open(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        file = up.server_file()
        headers = {"Authorization": f"Bearer {file.token}"}
        with httpx2.stream(
            "GET", f"{file.url}/v1/streams/server/sse", headers=headers, timeout=LIMIT
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": legation"
            started = time.monotonic()
            up.process.send_signal(signal.SIGTERM)
            assert "event: bye" in list(lines)
        assert up.process.wait(LIMIT) == 0
        assert time.monotonic() - started < 5  # a generous bound on a busy machine; the benchmark measures


STUBBORN = ("ignore-signals", "ignore-stdin-eof", "say I do not listen", "stall-hard 3600")


@pytest.mark.parametrize("how", ["sessions", "acp", "leaving", "process"])
def test_it_does_not_wait_for_an_agent_that_obeys_nothing(tmp_path: Path, how: str) -> None:
    """Though it would be given five minutes to end by itself. `leaving`: it is being given them at that moment."""
    env = {"STOP_GRACE": "300s", "FOLDERS": str(tmp_path), "PROCESSES": "true"}
    with running(tmp_path, "server", **{f"LEGATION_{name}": value for name, value in env.items()}) as up:
        up.line()
        file = up.server_file()
        headers = {"Authorization": f"Bearer {file.token}"}
        with httpx2.Client(base_url=file.url, headers=headers, timeout=LIMIT, trust_env=False) as http:
            pid, session = _stubborn(http, tmp_path, how)
            up.process.send_signal(signal.SIGTERM)
            assert up.process.wait(LIMIT) == 0
    found = process(pid)
    assert found is None or found.dead
    if session is None:
        return
    with running(tmp_path, "server") as up:
        up.line()
        file = up.server_file()
        events = httpx2.get(
            f"{file.url}/v1/streams/{session}/events?limit=500",
            headers={"Authorization": f"Bearer {file.token}"},
            timeout=LIMIT,
        ).json()["items"]
    exited = [event["raw"] for event in events if event["type"] == "agent-exited"]
    assert [each["signal"] for each in exited] == [signal.SIGKILL]  # it was asked before
    told = [event["type"] for event in events if event["type"] in ("agent-exited", "prompt-finished")]
    assert told == ["agent-exited", "prompt-finished"]  # the log has all of it


def _stubborn(http: httpx2.Client, place: Path, how: str) -> tuple[int, str | None]:
    """The process, and the session that it has."""
    if how == "process":
        script = "trap '' TERM HUP; echo up; while :; do sleep 1; done"
        started = http.post("/v1/processes", json={"command": "sh", "args": ["-c", script]}).json()
        path = f"/v1/processes/{started['id']}/logs"
        _until(lambda: http.get(path).json()["entries"])
        return int(started["pid"]), None

    def rpc(method: str, **params: object) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return http.post("/v1/acp/c", params={"agent": "rehearsal"}, json=message).json()["result"]

    if how == "sessions":
        session = "s"
        assert http.post("/v1/sessions/s", json={"agent": "rehearsal"}).status_code == 200
    else:
        rpc("initialize", protocolVersion=1)
        session = rpc("session/new", cwd=str(place), mcpServers=[])["sessionId"]
    body = {"message": rehearse("spawn-tree", *STUBBORN)}
    assert http.post(f"/v1/sessions/{session}/messages", json=body).status_code == 204

    def said() -> list[str]:
        found = http.get(f"/v1/streams/{session}/events", params={"limit": 500}).json()["items"]
        chunks = [event["raw"]["update"] for event in found if event["type"] == "agent-message-chunk"]
        return [each["content"]["text"] for each in chunks]

    _until(lambda: "I do not listen" in "".join(said()))
    if how == "leaving":
        assert http.delete("/v1/acp/c").status_code == 204
    tree = json.loads(said()[0])
    return next(pid for pid in tree.values() if isinstance(pid, int)), session


def _until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # a server elsewhere; bounded


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_end_it_as_well(tmp_path: Path, number: int) -> None:
    with running(tmp_path) as up:
        up.line()
        assert up.stop(number) == 0
        assert not (up.data_dir / "server.json").exists()


def test_a_stop_leaves_runners_and_says_so_unless_runs_are_to_be_cancelled(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        task = rehearse("say begun", "stall 600")
        run = legation(tmp_path, "run", task, "--agent", "rehearsal", "--detach").stdout.strip()
        _until(lambda: _state(tmp_path, run) == "running")
        stopped = legation(tmp_path, "stop")
        assert "1 run goes on with its runner: `legation up` finds" in stopped.stdout
        assert "after 60 minutes" in stopped.stdout
        assert up.process.wait(LIMIT) == 0
    [runner] = _runners(tmp_path)
    with running(tmp_path) as up:
        up.line()
        assert _state(tmp_path, run) == "running"
        assert [each.pid for each in _runners(tmp_path)] == [runner.pid]
        stopped = legation(tmp_path, "stop", "--cancel-runs")
        assert (stopped.stdout, stopped.stderr) == (f"stopped (pid {up.process.pid})\n", "")
        assert up.process.wait(LIMIT) == 0
    assert _runners(tmp_path) == []
    found = process(runner.pid)
    assert found is None or found.dead  # whoever collects it may take its time
    with running(tmp_path) as up:
        up.line()
        assert _state(tmp_path, run) == "cancelled"


def _state(home: Path, run: str) -> str:
    (row,) = json_lines(legation(home, "runs", "show", run, "--json").stdout)
    return str(row["state"])


def _runners(home: Path) -> list[RegisteredChild]:
    return [
        each for each in listed(home / ".local/share/legation" / CHILDREN) if each.name.startswith("run_")
    ]


def test_a_worker_needs_postgres(tmp_path: Path) -> None:
    refused = legation(tmp_path, "worker")
    assert refused.returncode == 2
    for name in ("DATABASE_URL", "WORKER_ID", "REPORT_URL"):  # all that is missing, at once
        assert f"LEGATION_{name} is missing" in refused.stderr


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.HTTPError:
        return False


def test_servers_and_a_worker_share_a_postgres(tmp_path: Path, postgres: Postgres) -> None:
    env: dict[str, Any] = {"LEGATION_DATABASE_URL": postgres.new_database().reveal()}
    for name in ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY"):
        env[f"LEGATION_{name}"] = legation(tmp_path, "keys", "new").stdout.strip()
    early = legation(tmp_path, "server", "--port", "0", **env)
    assert early.returncode == 9
    assert "legation migrate" in early.stderr
    assert legation(tmp_path, "migrate", "--check", **env).returncode == 1
    assert "applied 0001_spine" in legation(tmp_path, "migrate", **env).stdout
    assert legation(tmp_path, "migrate", "--check", **env).returncode == 0
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with running(tmp_path / "one", "server", **env) as one, running(tmp_path / "two", "server", **env) as two:
        one.line()
        two.line()
        made = legation(tmp_path / "one", "tokens", "new", "shared", **env)
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert httpx2.get(f"{two.server_file().url}/v1/me", headers=headers).status_code == 200
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        named = {"LEGATION_WORKER_ID": "w1", "LEGATION_REPORT_URL": one.server_file().url}
        worker = Running(tmp_path, "worker", **env, **named, LEGATION_WORKER_PORT=str(port))
        assert "ready; worker w1" in worker.line()
        at = f"http://127.0.0.1:{port}"
        _until(lambda: _answers(f"{at}/health"))
        assert httpx2.get(f"{at}/health").json() == {"status": "ok", "worker": "w1", "busy": 0}
        assert "legation_worker_claims" in httpx2.get(f"{at}/metrics").text
        assert worker.stop() == 0
        assert "pg_dump" in legation(tmp_path / "one", "backup", "copy.tar", **env).stderr
