"""`legation runner` as a process, with real agents in processes of theirs, and a caller over HTTP."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agents.bytes_agent import PRELUDE
from tests.cli.command import environment, rehearse
from tests.cli.command_server import ForkedCommand, is_own_start
from tests.runner.caller_server import LIMIT, TOKEN, Caller, Fault, Request
from tests.runner.rig import texts

pytestmark = pytest.mark.heavy

REHEARSAL = shlex.join([sys.executable, "-m", "legation.agents.rehearsal", "--execute"])
SECRET = "sk-ant-a-key-that-nobody-may-see"


def scripted(source: str) -> str:
    return shlex.join([sys.executable, "-I", "-S", "-c", PRELUDE + source])


def config_of(caller: Caller | str, prompt: object, **more: object) -> dict[str, object]:
    return {
        "runId": "run_1",
        "taskId": "task_1",
        "sandboxId": "box_1",
        "callbackUrl": caller if isinstance(caller, str) else caller.url,
        "token": TOKEN,
        "promptId": "prompt_1",
        "prompt": prompt,
        **more,
    }


class Run:
    """A runner in its own process."""

    def __init__(self, process: ForkedCommand | subprocess.Popen[bytes]) -> None:
        self.process = process

    async def ended(self, limit: float = LIMIT) -> tuple[int, str]:
        _, stderr = await asyncio.to_thread(self.process.communicate, timeout=limit)
        assert self.process.returncode is not None
        return self.process.returncode, stderr.decode()


@asynccontextmanager
async def started(
    home: Path,
    config: object,
    *argv: str,
    agent: str | None = REHEARSAL,
    fds: tuple[int, ...] = (),
    **env: str,
) -> AsyncIterator[Run]:
    work = home / "work"
    work.mkdir(exist_ok=True)
    path = home / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    names = {"CODING_AGENT_ACP_COMMAND": agent} if agent is not None else {}
    given = {"FACTORY_SUPERVISOR_CONFIG_PATH": str(path), **names, **env}
    process: ForkedCommand | subprocess.Popen[bytes]
    if fds or is_own_start(env):
        process = subprocess.Popen(
            [sys.executable, "-m", "legation", "runner", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(home, **given),
            cwd=work,
            pass_fds=fds,
            start_new_session=True,
        )
    else:
        process = ForkedCommand(("runner", *argv), environment(home, **given), work)
    try:
        yield Run(process)
    finally:
        process.kill()
        if process.stderr and not process.stderr.closed:
            await asyncio.to_thread(process.communicate, timeout=LIMIT)


async def played(home: Path, caller: Caller, prompt: object, *argv: str, **more: Any) -> tuple[int, str]:
    fields = more.pop("fields", {})
    async with started(home, config_of(caller, prompt, **fields), *argv, **more) as run:
        return await run.ended()


async def test_one_prompt_is_reported_from_the_first_moment_to_the_end(tmp_path: Path) -> None:
    async with Caller() as caller:
        code, said = await played(tmp_path, caller, rehearse("say one", "run true", "say two"))
        assert code == 0, said
        assert caller.beats[0]["sessionId"] is None
        last = caller.taken[-1]
        assert (last["kind"], last["stopReason"]) == ("prompt_complete", "end_turn")
        kinds = [each["update"]["sessionUpdate"] for each in caller.notifications]
        assert "tool_call" in kinds
        spoken = [
            each for each in caller.notifications if each["update"]["sessionUpdate"] == "agent_message_chunk"
        ]
        assert "".join(texts(spoken)).endswith("onetwo")
        assert last["sessionId"] == caller.notifications[0]["sessionId"]
        assert last["snapshot"]["messages"][-1]["content"][0]["text"].endswith("two")


async def test_a_prompt_may_be_content_blocks_and_the_folder_is_repo_dir(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    blocks = [{"type": "text", "text": rehearse("write made.txt here", "read made.txt")}]
    async with Caller() as caller:
        code, said = await played(tmp_path, caller, blocks, fields={"repoDir": str(repo)})
        assert code == 0, said
        assert (repo / "made.txt").exists()


REFLECT = """
capabilities = {"mcpCapabilities": {"http": True}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": capabilities})
message = read()
while message.get("method") != "session/new":
    message = read()
options = [{"type": "select", "id": "model", "name": "Model", "category": "model", "currentValue": "small",
            "options": [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}]}]
modes = {"currentModeId": "bypassPermissions", "availableModes": [{"id": "bypassPermissions", "name": "Bypass"},
         {"id": "default", "name": "Default"}]}
send(id=message["id"], result={"sessionId": "s1", "configOptions": options, "modes": modes})
asked = []
while True:
    got = read()
    if got.get("method") == "session/prompt":
        break
    asked.append(got["method"] + ":" + str(got["params"].get("value", got["params"].get("modeId"))))
    options[0]["currentValue"] = got["params"].get("value", "small")
    send(id=got["id"], result={"configOptions": options})
update(json.dumps({"new": message["params"], "asked": asked, "env": dict(os.environ), "prompt": got["params"]["prompt"]}))
permission(7, options=[{"optionId": "always", "name": "Always", "kind": "allow_always"},
                       {"optionId": "no", "name": "No", "kind": "reject_once"}], title="t")
answered = answer(7)
permission(8, title="t")
update(json.dumps([answered["result"], answer(8)["result"]]))
done(got["id"])
"""


async def test_every_field_has_its_effect(tmp_path: Path) -> None:
    servers = [
        {"name": "files", "command": "/bin/files", "args": ["-v"], "env": [{"name": "A", "value": "b"}]},
        {"name": "web", "type": "http", "url": "http://127.0.0.1:1/", "headers": []},
    ]
    fields = {"modelId": "large", "mcpServers": servers, "env": ["WANTED", "NOT_SET"]}
    async with Caller() as caller:
        code, said = await played(
            tmp_path,
            caller,
            "do it",
            agent=scripted(REFLECT),
            fields=fields,
            WANTED="yes",
            UNWANTED="no",
            ANTHROPIC_API_KEY=SECRET,
            ANTHROPIC_BASE_URL="http://127.0.0.1:1",
            HTTPS_PROXY="http://127.0.0.1:2",
        )
        assert code == 0, said
        told, answers = [json.loads(each) for each in texts(caller.notifications)]
        assert told["new"]["mcpServers"] == servers
        assert told["new"]["cwd"] == str(tmp_path / "work")
        assert told["asked"] == ["session/set_config_option:large"]  # and the mode is left alone
        env = told["env"]
        assert (env["HOME"], env["WANTED"]) == (str(tmp_path), "yes")
        assert "UNWANTED" not in env
        assert not any(name.startswith(("FACTORY_", "CODING_AGENT")) for name in env)
        assert (env["ANTHROPIC_BASE_URL"], env["HTTPS_PROXY"]) == ("http://127.0.0.1:1", "http://127.0.0.1:2")
        assert env["ANTHROPIC_API_KEY"] == "[redacted:ANTHROPIC_API_KEY]"
        assert SECRET not in "".join(str(each.body) for each in caller.requests)
        # Approved: for ever where the agent offers nothing else, else once.
        assert [each["outcome"]["optionId"] for each in answers] == ["always", "allow_once"]


async def test_with_a_bundle_the_agent_gets_that_alone(tmp_path: Path) -> None:
    fields = {"bundle": {"ANTHROPIC_API_KEY": SECRET, "MODE": "run"}, "agentName": "claude"}
    async with Caller() as caller:
        code, said = await played(
            tmp_path, caller, "do it", agent=scripted(REFLECT), fields=fields, OPENAI_API_KEY="of-the-runner"
        )
        assert code == 0, said
        env = json.loads(texts(caller.notifications)[0])["env"]
        assert (env["MODE"], env["ANTHROPIC_API_KEY"]) == ("run", "[redacted:ANTHROPIC_API_KEY]")
        assert "OPENAI_API_KEY" not in env
        assert Path(env["HOME"]).is_relative_to(tmp_path / ".local/share/legation/runners")
        assert SECRET not in "".join(str(each.body) for each in caller.requests)
        kept = [each for each in tmp_path.rglob("*") if each.is_file() and each.name != "config.json"]
        assert [each for each in kept if SECRET.encode() in each.read_bytes()] == []


RESUMES = """
message = read()
send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
message = read()
assert message["method"] == "session/load", message
name = message["params"]["sessionId"]
for each in range(100):
    update(f"history {each}", name)
options = [{"type": "select", "id": "model", "name": "Model", "category": "model", "currentValue": "small",
            "options": [{"value": "small", "name": "Small"}, {"value": "large", "name": "Large"}]}]
send(id=message["id"], result={"configOptions": options})
update("after the load", name)
message = read()
if message["method"] == "session/set_config_option":
    options[0]["currentValue"] = message["params"]["value"]
    send(id=message["id"], result={"configOptions": options})
    update("set to " + message["params"]["value"], name)
    message = read()
prompt = message["id"]
update("live", name)
done(prompt)
"""


async def test_a_session_is_taken_up_and_its_history_is_not_reported(tmp_path: Path) -> None:
    async with Caller() as caller:
        fields = {"sessionId": "an-older-one"}
        code, said = await played(tmp_path, caller, "go on", agent=scripted(RESUMES), fields=fields)
        assert code == 0, said
        assert texts(caller.notifications) == ["after the load", "live"]
        assert {each["sessionId"] for each in caller.taken} == {"an-older-one"}
        told = caller.taken[-1]["snapshot"]
        assert [each["content"][0]["text"] for each in told["messages"]] == ["after the loadlive"]


async def test_a_session_that_is_taken_up_gets_its_model(tmp_path: Path) -> None:
    async with Caller() as caller:
        fields = {"sessionId": "an-older-one", "modelId": "Large"}
        code, said = await played(tmp_path, caller, "go on", agent=scripted(RESUMES), fields=fields)
        assert code == 0, said
        assert texts(caller.notifications) == ["after the load", "set to large", "live"]


async def test_a_model_that_is_not_offered_is_reported(tmp_path: Path) -> None:
    async with Caller() as caller:
        code, _ = await played(tmp_path, caller, "go", agent=scripted(REFLECT), fields={"modelId": "huge"})
        assert code == 6
        assert caller.taken[-1]["error"]["message"] == "cannot choose that modelId: choose from small, large"


async def test_the_first_command_that_is_named_counts(tmp_path: Path) -> None:
    def say(text: str) -> str:
        return scripted(f"hello(); session(); p = prompted(); update({text!r}); done(p)")

    async with Caller() as caller:
        code, _ = await played(tmp_path, caller, "go", agent=say("coding"), CLAUDE_ACP_COMMAND=say("claude"))
        assert (code, texts(caller.notifications)) == (0, ["coding"])
    (tmp_path / "second").mkdir()
    async with Caller() as caller:
        code, _ = await played(
            tmp_path / "second", caller, "go", agent=None, CLAUDE_ACP_COMMAND=say("claude")
        )
        assert (code, texts(caller.notifications)) == (0, ["claude"])


async def test_without_a_command_the_seeds_package_is_started_by_npx(tmp_path: Path) -> None:
    """A stand-in for npx, first in the PATH, that is an agent and says what it was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    npx = folder / "npx"
    agent = "hello(); session(); p = prompted(); update(' '.join(sys.argv[1:])); done(p)"
    (folder / "agent.py").write_text(PRELUDE + agent)
    npx.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/agent.py "$@"\n')
    npx.chmod(0o755)
    async with Caller() as caller:
        code, said = await played(tmp_path, caller, "go", agent=None, PATH=f"{folder}:/usr/bin:/bin")
        assert (code, texts(caller.notifications)) == (0, ["-y @agentclientprotocol/claude-agent-acp"])
        assert "legation agents install claude-acp" in said


async def test_an_agent_that_fails_is_reported(tmp_path: Path) -> None:
    dies = f"hello(); session(); prompted(); update('last words'); sys.stderr.write('why {SECRET}'); sys.stderr.flush(); os._exit(3)"
    async with Caller() as caller:
        code, _ = await played(tmp_path, caller, "go", agent=scripted(dies), ANTHROPIC_API_KEY=SECRET)
        assert code == 6
        last = caller.taken[-1]
        assert (last["kind"], last["exitCode"]) == ("prompt_failed", 3)
        assert last["stderrTail"] == "why [redacted:ANTHROPIC_API_KEY]"
        assert last["error"]["message"].startswith("cannot")
        assert texts(caller.notifications) == ["last words"]


@pytest.mark.parametrize(
    ("number", "told"), [(-32603, "-32603"), (-32000, "legation/unauthenticated")], ids=["its own", "sign in"]
)
async def test_an_agent_that_refuses_is_reported_with_its_own_words(
    tmp_path: Path, number: int, told: str
) -> None:
    """And with its own number, but for what every caller has to tell apart."""
    refuses = f"hello(); session(); p = prompted(); send(id=p, error={{'code': {number}, 'message': 'no {SECRET}'}}); stay()"
    async with Caller() as caller:
        code, _ = await played(tmp_path, caller, "go", agent=scripted(refuses), ANTHROPIC_API_KEY=SECRET)
        assert code == 6
        error = caller.taken[-1]["error"]
        assert error == {"message": "no [redacted:ANTHROPIC_API_KEY]", "code": told}


async def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    async with Caller() as caller:
        code, _ = await played(tmp_path, caller, "go", agent="/no/such/agent")
        assert code == 6
        [report] = caller.taken
        assert (report["kind"], report["sessionId"]) == ("prompt_failed", None)


@pytest.mark.parametrize(
    ("config", "problems"),
    [
        ("{", ["not JSON"]),
        ("[]", ["no JSON object"]),
        (
            "{}",
            [
                *("runId: it is missing", "taskId: it is missing", "sandboxId: it is missing"),
                *("callbackUrl: it is missing", "token: it is missing", "promptId: it is missing"),
                "prompt: it is missing",
            ],
        ),
        (
            json.dumps(
                {
                    **config_of("ftp://x", []),
                    "runId": 1,
                    "token": "",
                    "sessionId": 3,
                    "modelId": "",
                    "mcpServers": [{"command": 1}],
                    "repoDir": "/no/such/folder",
                    "env": ["A=secret"],
                    "permissions": "route?",
                    "flushTimeout": 0,
                    "spoolLimit": "x",
                    "orphanAfter": -1,
                    "bundle": {"A": 1},
                    "agentName": "a b",
                    "changes": "yes",
                }
            ),
            [
                *("runId:", "token:", "sessionId:", "modelId:", "callbackUrl:", "repoDir:", "prompt:"),
                *("mcpServers:", "env:", "permissions:", "flushTimeout:", "spoolLimit:", "orphanAfter:"),
                *("changes:", "bundle:", "agentName:"),
            ],
        ),
        (
            json.dumps(
                {
                    **config_of("http://x", "p", permissions="route"),
                    "commandsUrl": "x",
                    "permissionTimeout": 0,
                    "idleTimeout": -1,
                    "ruleFolders": "/etc",
                }
            ),
            ["commandsUrl:", "permissionTimeout:", "idleTimeout:", "ruleFolders:"],
        ),
        (
            json.dumps(config_of("http://x", "p", commandsUrl="http://x/c", idleTimeout=5)),
            ["commandsUrl: it counts only beside permissions", "idleTimeout: it counts only beside"],
        ),
        *(
            (json.dumps({**config_of("http://x", "p"), "token": token}), ["token: write visible ASCII"])
            for token in ("secret\n", "two secrets", "secr\u20act")
        ),
    ],
)
async def test_all_that_is_wrong_is_listed_and_nothing_started(
    tmp_path: Path, config: str, problems: list[str]
) -> None:
    touched = tmp_path / "touched"
    async with started(tmp_path, config, agent=f"touch {touched}") as run:
        code, said = await run.ended()
    assert code == 2
    assert [each for each in problems if each not in said] == []
    assert "secret" not in said
    assert not touched.exists()


async def test_a_configuration_comes_by_flag_variable_or_descriptor(tmp_path: Path) -> None:
    named = tmp_path / "named.json"
    async with Caller() as caller:
        named.write_text(json.dumps(config_of(caller, rehearse("say one"), unheard_of=1)))
        reading, writing = os.pipe()
        os.write(writing, json.dumps(config_of(caller, rehearse("say two"), promptId="p2")).encode())
        os.close(writing)
        async with started(tmp_path, "{}", "--config", str(named), "--unlink-config") as run:
            code, said = await run.ended()
            assert (code, named.exists()) == (0, False)
            assert "not used of the configuration: unheard_of" in said
        first = len(caller.taken)
        caller.taken.clear()
        caller._bodies.clear()
        async with started(tmp_path, "{}", "--config-fd", str(reading), fds=(reading,)) as run:
            os.close(reading)
            assert (await run.ended())[0] == 0
        assert first > 0
        assert caller.taken[-1]["promptId"] == "p2"


async def test_no_configuration_is_an_error(tmp_path: Path) -> None:
    async with started(tmp_path, "{}", FACTORY_SUPERVISOR_CONFIG_PATH="") as run:
        code, said = await run.ended()
    assert code == 2
    assert "set FACTORY_SUPERVISOR_CONFIG_PATH" in said
    async with started(tmp_path, "{}", FACTORY_SUPERVISOR_CONFIG_PATH=str(tmp_path / "none")) as run:
        code, said = await run.ended()
    assert (code, "No such file" in said) == (2, True)


STAYS = "hello(); session(); prompted(); [update(f'w{n}') for n in range(120)]; stay()"


async def test_401_stops_the_agent_with_a_code_of_its_own(tmp_path: Path) -> None:
    refuse = lambda each: 401 if each.report["sequence"] else None  # noqa: E731
    async with Caller(fault=refuse) as caller:
        code, said = await played(tmp_path, caller, "go", agent=scripted(STAYS))
        assert code == 4
        assert "the caller answered 401" in said
        assert len([each for each in caller.requests if each.report["sequence"]]) == 1


async def test_another_refusal_is_told(tmp_path: Path) -> None:
    refuse = lambda each: 422 if each.report["sequence"] else None  # noqa: E731
    async with Caller(fault=refuse) as caller:
        code, said = await played(tmp_path, caller, "go", agent=scripted(STAYS))
        assert (code, "answered 422" in said) == (10, True)


async def test_a_caller_that_is_gone_gets_it_when_the_runner_is_started_again(tmp_path: Path) -> None:
    down = True

    def fault(each: Request) -> Fault | None:
        return 503 if down and each.report["sequence"] else None

    async with Caller(fault=fault) as caller:
        fields = {"flushTimeout": 1}
        code, said = await played(tmp_path, caller, rehearse("say one"), fields=fields)
        assert code == 8
        assert "start the runner again on the same folder" in said
        down = False
        code, _ = await played(tmp_path, caller, rehearse("say one"), fields=fields)
        assert code == 0
        assert caller.taken[-1]["kind"] == "prompt_complete"
        assert [each["sequence"] for each in caller.taken] == [*range(1, len(caller.taken) + 1)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopped_it_stops_its_agent_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    agent = scripted("hello(); session(); prompted(); update(str(os.getpid())); stay()")
    async with Caller() as caller:
        async with started(tmp_path, config_of(caller, "go"), agent=agent) as run:
            await caller.until(lambda each: bool(each.notifications))
            run.process.send_signal(number)
            code, _ = await run.ended()
        assert code == 128 + number
        assert caller.taken[-1]["kind"] == "prompt_failed"
        assert number.name in caller.taken[-1]["error"]["message"]
        assert not alive(int(texts(caller.notifications)[0]))


async def test_killed_and_started_again_it_sends_the_rest_and_that_the_prompt_failed(tmp_path: Path) -> None:
    """What was said and not accepted arrives once, in order, with the bodies that were sent before."""
    agent = scripted(
        "hello(); session(); prompted(); [update(f'w{n}') for n in range(500)]; update(str(os.getpid())); stay()"
    )
    stuck = True

    def fault(each: Request) -> Fault | None:
        return 503 if stuck and each.report["sequence"] > 3 else None

    async with Caller(fault=fault) as caller:
        config = config_of(caller, "go")
        async with started(tmp_path, config, agent=agent) as run:
            await caller.until(lambda each: any(r.report["sequence"] == 4 for r in each.requests))
            async with asyncio.timeout(LIMIT):
                while not any(_said(each, 501) for each in tmp_path.rglob("session.jsonl")):
                    await asyncio.sleep(0.05)
            run.process.kill()
            await run.ended()
        stuck = False
        async with started(tmp_path, config, agent="/no/such/agent") as run:
            code, _ = await run.ended()
        assert code == 6
        said = texts(caller.notifications)
        assert said[:500] == [f"w{n}" for n in range(500)]
        assert len(said) == 501
        last = caller.taken[-1]
        assert (last["kind"], "killed" in last["error"]["message"]) == ("prompt_failed", True)
        bodies = {each.body for each in caller.requests if each.report["sequence"] == 4}
        assert len(bodies) == 1
        async with asyncio.timeout(LIMIT):
            while alive(int(said[-1])):
                await asyncio.sleep(0.05)


async def test_killed_its_agent_is_gone_with_it_though_it_hears_nothing(tmp_path: Path) -> None:
    """Neither the end of its input nor a signal that it can ignore ends it, and it has started another."""
    deaf = scripted(
        "import time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "hello(); session(); prompted(); update(str(os.getpid())); child = os.fork()\n"
        "if child: update(str(child))\n"
        "while True: time.sleep(600)"
    )
    async with Caller() as caller:
        async with started(tmp_path, config_of(caller, "go"), agent=deaf) as run:
            await caller.until(lambda each: len(each.notifications) == 2)
            [place] = tmp_path.rglob("runner.json")
            assert json.loads(place.read_text())["pid"] == run.process.pid
            run.process.kill()
            await run.ended()
        async with asyncio.timeout(LIMIT):
            while any(alive(int(pid)) for pid in texts(caller.notifications)):
                await asyncio.sleep(0.05)
        assert not place.with_name("exit.json").exists()


def _said(path: Path, count: int) -> bool:
    return path.read_bytes().count(b"agent-message-chunk") >= count


async def test_a_full_spool_pauses_the_agent_and_then_fails_the_prompt(tmp_path: Path) -> None:
    from legation.runner.config import AgentChoice, choose_agent, read_config
    from legation.runner.reporter import ReportTimes
    from legation.runner.runner import RunnerTimes, run

    floods = scripted(
        "hello(); session(); prompted(); block = line('x' * 1000) * 100\nwhile True: raw(block)"
    )
    down = asyncio.Event()
    refuse = lambda each: 503 if each.report["sequence"] and not down.is_set() else None  # noqa: E731
    async with Caller(fault=refuse) as caller:
        text = json.dumps(config_of(caller, "go", spoolLimit=2_000_000, repoDir=str(tmp_path))).encode()
        config = read_config(text)
        choice: AgentChoice = choose_agent(
            config, {"CODING_AGENT_ACP_COMMAND": floods, "HOME": str(tmp_path)}, tmp_path
        )
        times = RunnerTimes(ReportTimes(retry_first=0.05, retry_most=0.1), spool_grace=1.0, stop_grace=0.5)
        running = asyncio.create_task(run(config, choice, tmp_path / "spool", times=times))
        async with asyncio.timeout(LIMIT):
            journal = tmp_path / "spool" / "_reports.jsonl"
            while not (journal.exists() and b"prompt_failed" in journal.read_bytes()):
                await asyncio.sleep(0.05)
            down.set()
            code = await running
        assert code == 9
        assert caller.taken[-1]["kind"] == "prompt_failed"
        assert "spoolLimit" in caller.taken[-1]["error"]["message"]
        size = (tmp_path / "spool" / "session.jsonl").stat().st_size
        assert size < 40_000_000


async def test_a_full_disk_pauses_the_agent_and_then_fails_the_prompt(tmp_path: Path) -> None:
    """What was said is told all the same: it is in memory, up to the pause."""
    agent = scripted(
        "hello(); session(); prompted(); [update(f'{n:05}' + 'x' * 500) for n in range(20000)]; stay()"
    )
    async with Caller() as caller:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(config_of(caller, "go", repoDir=str(tmp_path))))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("runner_to_fill.py"))),
            *(str(config), str(tmp_path / "spool"), "200000"),
            env=environment(tmp_path, CODING_AGENT_ACP_COMMAND=agent),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(LIMIT):
                _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert process.returncode == 9, said.decode()
        assert (tmp_path / "spool" / "session.jsonl").stat().st_size <= 200_000
        end = caller.taken[-1]
        assert (end["kind"], "the disk is full" in end["error"]["message"]) == ("prompt_failed", True)
        told = texts(caller.notifications)
        assert len(told) > 400  # more than the disk has
        assert [int(text[:5]) for text in told] == [*range(len(told))]
