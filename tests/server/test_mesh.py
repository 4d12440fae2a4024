"""The mesh port: seed 001's program as it is printed, and nobody else than a program of this machine."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from starlette.types import ASGIApp
from tests.certificates import make_certificate
from tests.cli.command import LIMIT, environment, legation
from tests.cli.server_process import Running, running
from tests.server.waiting_calls import POLICY, Desk, open_desk, outcome

from legation.errors import Conflict
from legation.proc.registry import Registry
from legation.server.auth import make_authenticate
from legation.server.http.app import AppOptions
from legation.server.mesh import HOSTS, agents_running, mesh_app, mesh_url, take_mesh
from legation.server.routes import MESH_ROUTES
from legation.server.sessions.hosts import CHILDREN

pytestmark = pytest.mark.heavy

# As the seed prints it; only the port's number is another.
PROGRAM = """
import requests
import time

MESH_URL = "http://localhost:9090"
CONFIDENCE_THRESHOLD = 0.8

while True:
    # 1. Poll for pending approvals (optionally filter by tool)
    pending = requests.get(f"{MESH_URL}/approvals",
        params={"status": "pending", "tool": "filesystem.*"}).json()

    for approval in pending:
        # 2. Get full context
        detail = requests.get(f"{MESH_URL}/approvals/{approval['id']}").json()

        # 3. Evaluate
        verdict = evaluate(detail)

        # 4. Act
        if verdict["confidence"] >= CONFIDENCE_THRESHOLD:
            requests.post(f"{MESH_URL}/approvals/{approval['id']}/{verdict['action']}", json={
                "resolved_by": "agent:supervisor",
                "reasoning": verdict["reasoning"],
                "confidence": verdict["confidence"],
            })
        else:
            # Escalate to human — leave pending
            notify_human(detail, verdict["reasoning"])

    time.sleep(2)
"""
# What the seed leaves to its reader.
JUDGEMENT = """
def evaluate(detail):
    assert detail["injection_risk"] is False and detail["status"] == "pending"
    assert isinstance(detail["recent_traces"], list) and isinstance(detail["active_grants"], list)
    path = detail["params"]["path"]
    if path.startswith("/srv/project/"):
        return {"action": "approve", "confidence": 0.95, "reasoning": "in the project"}
    if path.startswith("/etc/"):
        return {"action": "deny", "confidence": 0.9, "reasoning": "outside of the project"}
    return {"action": "approve", "confidence": 0.3, "reasoning": "unsure"}

def notify_human(detail, reasoning):
    print("for a human:", detail["id"], reasoning, flush=True)
"""
# `requests` is no dependency of ours: where it is not there, so much of it on urllib.
STAND_IN = """
import json as _json
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from urllib.error import HTTPError

class Answer:
    def __init__(self, status, body):
        self.status_code, self._body = status, body
    def json(self):
        return _json.loads(self._body)

def _call(request):
    try:
        with urlopen(request) as answer:
            return Answer(answer.status, answer.read())
    except HTTPError as error:
        return Answer(error.code, error.read())

def get(url, params=None):
    return _call(Request(url + ("?" + urlencode(params) if params else "")))

def post(url, json=None):
    return _call(Request(url, _json.dumps(json).encode(), {"Content-Type": "application/json"}, method="POST"))
"""
JQ = (
    "[.[] | select(.supervisor_reasoning != null)]",
    "[.[] | select(.supervisor_confidence > 0) | .supervisor_confidence] | add / length",
    "[.[] | select(.supervisor_confidence > 0 and .supervisor_confidence < 0.85)]",
)


class Backend(BaseHTTPRequestHandler):
    """The tool: it has written whatever it is told to."""

    written: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.written.append(told)
        body = b'{"written": true}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Quiet."""


@contextmanager
def backend() -> Iterator[str]:
    Backend.written = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Backend) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/write"
        finally:
            server.shutdown()
            thread.join()


def mesh_of(up: Running) -> str:
    """It says where on a line of its own."""
    said = up.line()
    while not (found := re.search(r"as a supervisor at (http://localhost:\d+)\n", said)):
        assert up.process.stdout
        said += os.read(up.process.stdout.fileno(), 65536).decode()
    return found[1]


@contextmanager
def program(folder: Path, mesh: str, *, real: bool) -> Iterator[subprocess.Popen[str]]:
    folder.mkdir()
    if not real:
        (folder / "requests.py").write_text(STAND_IN)
    source = folder / "supervisor.py"
    source.write_text(JUDGEMENT + PROGRAM.replace("http://localhost:9090", mesh))
    with subprocess.Popen(
        [sys.executable, source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
        cwd=folder,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def call_tool(url: str, token: str, path: str) -> httpx2.Response:
    return httpx2.post(
        f"{url}/tool/filesystem.write_file",
        headers={"Authorization": f"Bearer {token}"},
        json={"params": {"path": path, "content": "package main"}},
        timeout=LIMIT,
    )


@pytest.mark.parametrize("real", [True, False], ids=["requests", "stand-in"])
def test_the_program_of_the_seed_runs_unchanged_and_its_curl_lines_answer(tmp_path: Path, real: bool) -> None:
    if real and find_spec("requests") is None:
        pytest.skip("requests is not installed")
    policy, tools = tmp_path / "policy.yaml", tmp_path / "tools.yaml"
    policy.write_text(POLICY)
    with backend() as written, ThreadPoolExecutor(4) as pool:
        tools.write_text(f'tools:\n  - {{name: filesystem.write_file, url: "{written}", kind: edit}}\n')
        argv = ("up", "--mesh-port", "0", "--policy", str(policy), "--tools", str(tools))
        with running(tmp_path, *argv) as up:
            mesh = mesh_of(up)
            found = up.server_file()
            headers = {"Authorization": f"Bearer {found.token}"}
            new = {"label": "claude", "kind": "agent"}
            agent = httpx2.post(f"{found.url}/v1/tokens", headers=headers, json=new).json()["secret"]
            with program(tmp_path / "supervisor", mesh, real=real) as supervisor:
                calls: list[Future[httpx2.Response]] = [
                    pool.submit(call_tool, found.url, agent, path)
                    for path in ("/srv/project/main.go", "/etc/passwd", "/home/you/notes")
                ]
                approved, denied = calls[0].result(LIMIT), calls[1].result(LIMIT)
                assert (approved.status_code, approved.json()["result"]) == (200, {"written": True})
                assert approved.json()["decided_by"] == "agent:supervisor"
                assert (denied.status_code, "outside of the project" in denied.text) == (403, True)
                assert supervisor.stdout
                unsure = supervisor.stdout.readline()
                assert supervisor.poll() is None, supervisor.stderr and supervisor.stderr.read()
            assert len(Backend.written) == 1
            pending = httpx2.get(f"{mesh}/approvals?status=pending").json()
            assert unsure == f"for a human: {pending[0]['id']} unsure\n"
            path = f"{found.url}/approvals/{pending[0]['id']}/deny"
            assert httpx2.post(path, headers=headers, json={}).status_code == 200
            assert calls[2].result(LIMIT).status_code == 403
            assert_curl_lines(tmp_path, mesh)


def assert_curl_lines(home: Path, mesh: str) -> None:
    def printed(line: str) -> Any:
        """As in a shell."""
        command = f"curl {mesh}/traces | \\\n  jq '{line}'"
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            env=environment(home),
            timeout=LIMIT,
            check=True,
        )
        return json.loads(done.stdout)

    supervised, average, unsure = (printed(line) for line in JQ)
    assert sorted(each["supervisor_reasoning"] for each in supervised) == [
        "in the project",
        "outside of the project",
    ]
    assert {each["approved_by"] for each in supervised} == {"agent:supervisor"}
    assert average == pytest.approx((0.95 + 0.9) / 2)
    assert unsure == []


def test_it_is_plain_beside_tls_on_both_addresses_and_ends_with_the_server(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    argv = ("up", "--mesh-port", "0", "--tls-cert", str(certificate), "--tls-key", str(key))
    with running(tmp_path, *argv) as up:
        mesh = httpx2.URL(mesh_of(up))
        assert mesh.port
        for host in ("localhost", "127.0.0.1", *(["[::1]"] if socket.has_ipv6 else [])):
            assert httpx2.get(f"http://{host}:{mesh.port}/approvals").json() == []
        main = up.server_file()
        assert main.url.startswith("https://")
        secure = main.url.replace("127.0.0.1", "localhost")
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert httpx2.get(f"{secure}/v1/health", verify=trusting).status_code == 200
        assert httpx2.get(f"{secure}/approvals", verify=trusting).status_code == 401
        waiting = http.client.HTTPConnection("127.0.0.1", mesh.port)
        waiting.request("GET", "/approvals")
        assert waiting.getresponse().read() == b"[]"
        begun = time.monotonic()
        assert up.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begun < LIMIT / 2, "nobody's idle connection is waited for"
        waiting.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", mesh.port), 5)


def test_without_the_flag_there_is_none(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        assert "supervisor" not in up.line()


def test_a_taken_port_is_told_before_anything_begins(tmp_path: Path) -> None:
    hosts = [(socket.AF_INET, "127.0.0.1")]
    hosts += [(socket.AF_INET6, "::1")] if len(take_and_close(0)) > 1 else []
    for family, host in hosts:
        with socket.socket(family) as other:
            other.bind((host, 0))
            other.listen()
            port = other.getsockname()[1]
            started = legation(tmp_path, "up", "--port", "0", "--mesh-port", str(port))
        assert started.returncode != 0
        assert f"{host}:{port} for supervisors: another program does" in started.stderr
        assert "--mesh-port" in started.stderr
        assert not (tmp_path / ".local/share/legation").exists()
    same = legation(tmp_path, "up", "--port", "4599", "--mesh-port", "4599")
    assert same.returncode != 0
    assert "mesh_port is 4599, as port is" in same.stderr


def take_and_close(port: int) -> list[tuple[str, int]]:
    taken = take_mesh(port)
    names = [sock.getsockname()[:2] for sock in taken]
    for sock in taken:
        sock.close()
    return names


def test_both_addresses_have_the_same_port() -> None:
    taken = take_mesh(0)
    try:
        ports = {sock.getsockname()[1] for sock in taken}
        assert len(ports) == 1
        assert mesh_url(taken) == f"http://localhost:{ports.pop()}"
        with pytest.raises(Conflict, match="--mesh-port"):
            take_mesh(taken[0].getsockname()[1])
    finally:
        for sock in taken:
            sock.close()
    assert take_mesh(None) == ()
    assert mesh_url(()) is None


def app_of(desk: Desk) -> ASGIApp:
    services = desk.rig.services
    return mesh_app(
        MESH_ROUTES,
        services=services,
        authenticate=make_authenticate(services),
        options=AppOptions(allowed_hosts=HOSTS, clock=services.clock),
        running=lambda: agents_running(services.settings.data_dir),
    )


@asynccontextmanager
async def neighbour(desk: Desk) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app_of(desk))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:9090") as client:
        yield client


@pytest.fixture
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk("sqlite", tmp_path, request) as made:
        yield made


@pytest.fixture
async def mesh(desk: Desk) -> AsyncIterator[httpx2.AsyncClient]:
    async with neighbour(desk) as client:
        yield client


async def test_a_program_without_a_credential_is_a_supervisor_and_no_more(
    desk: Desk, mesh: httpx2.AsyncClient
) -> None:
    write, call = await desk.calls.ask()
    mail, _ = await desk.calls.ask("gmail.send", params={"to": "a@example.org"})
    body = {"resolved_by": "human:alice", "reasoning": "fine", "confidence": 0.9}
    answer = await mesh.post(f"/approvals/{write.id}/approve", json=body)
    assert (answer.status_code, answer.json()["resolved_by"]) == (200, "agent:supervisor")
    assert (await outcome(call))[0].by == "agent:supervisor"
    for verb in ("approve", "deny"):
        assert (await mesh.post(f"/approvals/{mail.id}/{verb}")).status_code == 403
    await mesh.get("/approvals?status=pending&tool=gmail.*")
    assert await desk.rig.services.attendance.last("local", "gmail.send") > 0, "it is there"


async def test_an_agent_of_its_name_does_not_decide_for_itself(desk: Desk, mesh: httpx2.AsyncClient) -> None:
    approval, _ = await desk.calls.ask(agent="supervisor")
    assert (await mesh.post(f"/approvals/{approval.id}/approve")).status_code == 403


async def test_a_credential_counts_as_it_does_elsewhere(desk: Desk, mesh: httpx2.AsyncClient) -> None:
    mail, call = await desk.calls.ask("gmail.send", params={"to": "a@example.org"})
    for wrong in ("Bearer lgn_wrong", "Bearer", "", "x"):
        answer = await mesh.get("/approvals", headers={"authorization": wrong})
        assert answer.status_code == 401, wrong
    assert (await mesh.post(f"/approvals/{mail.id}/approve", headers=desk.person)).status_code == 200
    assert (await outcome(call))[0].passed
    cookie = await desk.rig.cookie(desk.rig.people["owner"])
    other, _ = await desk.calls.ask("gmail.send", params={"to": "b@example.org"})
    answer = await mesh.post(f"/approvals/{other.id}/approve", headers={"cookie": cookie["cookie"]})
    assert answer.status_code == 403, "a cookie says nothing here"


async def test_it_serves_nothing_else(desk: Desk, mesh: httpx2.AsyncClient) -> None:
    grant = {"agent": "*", "tools": "*", "duration": 60}
    assert (await mesh.get("/grants")).json() == []
    assert (await mesh.post("/grants", json=grant, headers=desk.person)).status_code == 405
    made = (await desk.post("/grants", grant)).json()
    assert (await mesh.get(f"/grants/{made['id']}")).status_code == 200
    assert (await mesh.delete(f"/grants/{made['id']}", headers=desk.person)).status_code == 405
    assert (await mesh.get("/traces")).status_code == 200
    for operation in desk.rig.app.operations:
        if operation.tag in ("approvals", "grants", "traces"):
            continue
        path = re.sub(r"\{\w+\}", "x", operation.path)
        answer = await mesh.request(operation.method, path, headers=desk.person)
        assert answer.status_code == 404, (operation.method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:9090"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": ""},
    ],
)
async def test_no_page_in_a_browser_gets_through(
    desk: Desk, mesh: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    approval, _ = await desk.calls.ask()
    for more in ({}, desk.person):
        for method, path in (
            ("GET", "/approvals"),
            ("HEAD", "/approvals"),
            ("POST", f"/approvals/{approval.id}/approve"),
            ("OPTIONS", "/approvals"),
            ("GET", "/nowhere"),
        ):
            preflight = {"access-control-request-method": "POST"} if method == "OPTIONS" else {}
            answer = await mesh.request(method, path, headers={**headers, **more, **preflight})
            assert answer.status_code == 403, (method, path)
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert approval.id not in answer.text
    assert (await mesh.get("/approvals", headers={"sec-fetch-site": "none"})).status_code == 200
    assert len((await mesh.get("/approvals?status=pending")).json()) == 1


async def test_a_name_that_was_made_to_point_here_is_refused(desk: Desk, mesh: httpx2.AsyncClient) -> None:
    approval, _ = await desk.calls.ask()
    for host in ("evil.example:9090", "localhost.evil.example", "127.0.0.2", "[::2]", "", "0.0.0.0:9090"):
        answer = await mesh.post(f"/approvals/{approval.id}/approve", headers={"host": host})
        assert answer.status_code == 400, host
    for host in ("localhost", "LOCALHOST:9090", "127.0.0.1:9090", "[::1]:9090"):
        answer = await mesh.get("/approvals?status=pending", headers={"host": host})
        assert len(answer.json()) == 1, host


async def test_while_agents_run_a_credential_is_needed(desk: Desk, mesh: httpx2.AsyncClient) -> None:
    approval, _ = await desk.calls.ask()
    agents = Registry(desk.rig.services.settings.data_dir / CHILDREN)
    token = "t" * 32
    agents.expect(token, "claude", detached=False)  # as a launcher does before it starts one
    for method, path in (("GET", "/approvals"), ("POST", f"/approvals/{approval.id}/approve")):
        refused = await mesh.request(method, path)
        assert (refused.status_code, refused.json()["data"]) == (403, {"agents": 1})
        assert "LEGATION_MESH_WITH_AGENTS" in refused.json()["detail"]
    assert (await mesh.get("/approvals", headers=desk.supervisor)).status_code == 200
    agents.remove(token)
    assert (await mesh.get("/approvals")).status_code == 200


async def test_it_can_be_forced(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with open_desk("sqlite", tmp_path, request, mesh_with_agents="true") as desk:
        Registry(desk.rig.services.settings.data_dir / CHILDREN).expect("t" * 32, "claude", detached=False)
        assert agents_running(desk.rig.services.settings.data_dir) == 1
        async with neighbour(desk) as mesh:
            assert (await mesh.get("/approvals")).status_code == 200


def test_a_detached_one_that_has_ended_is_no_agent_that_runs(tmp_path: Path) -> None:
    registry = Registry(tmp_path / CHILDREN)
    registry.add("t" * 32, "claude", 2**22 + 1, 1, detached=True)
    assert agents_running(tmp_path) == 1  # nobody has said that it ended
    path = registry.path("t" * 32)
    ended = b'"ended":{"code":0,"signal":null,"at":1}'
    path.write_bytes(path.read_bytes().replace(b'"ended":null', ended))
    assert agents_running(tmp_path) == 0
