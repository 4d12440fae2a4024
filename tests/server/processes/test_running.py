"""`POST /v1/processes/run`."""

import pytest
from tests.server.processes.process_rig import ProcessRig, gone

pytestmark = pytest.mark.heavy


async def test_it_returns_what_was_written_and_the_exit_code(bench: ProcessRig) -> None:
    ran = (
        await bench.post("/run", {"command": "sh", "args": ["-c", "cat; echo é; echo no >&2; exit 3"]})
    ).json()
    assert ran.pop("durationMs") >= 0
    assert ran == {
        "exitCode": 3,
        "exitSignal": None,
        "timedOut": False,
        "stdout": "é\n",
        "stderr": "no\n",
        "stdoutTruncated": False,
        "stderrTruncated": False,
    }


async def test_a_signal_is_told(bench: ProcessRig) -> None:
    ran = (await bench.post("/run", {"command": "sh", "args": ["-c", "kill -9 $$"]})).json()
    assert (ran["exitCode"], ran["exitSignal"], ran["timedOut"]) == (None, "SIGKILL", False)


async def test_at_the_end_of_its_time_it_and_its_daemons_are_gone(bench: ProcessRig) -> None:
    script = "setsid sleep 1000 & echo $!; trap '' TERM; sleep 1000"
    ran = (await bench.post("/run", {"command": "sh", "args": ["-c", script], "timeoutMs": 1000})).json()
    assert (ran["timedOut"], ran["exitCode"], ran["exitSignal"]) == (True, None, None)
    assert 1000 <= ran["durationMs"] < 20_000
    await gone(int(ran["stdout"]))


async def test_the_longest_time_is_the_servers(bench: ProcessRig) -> None:
    config = (await bench.get("/config")).json()
    await bench.post("/config", {**config, "maxRunTimeoutMs": 300})
    ran = (await bench.post("/run", {"command": "sleep", "args": ["1000"], "timeoutMs": 999_999_999})).json()
    assert ran["timedOut"] is True


@pytest.mark.parametrize("asked", [None, 1000, 10**9])
async def test_too_much_output_is_cut_and_marked_and_the_command_goes_on(
    bench: ProcessRig, asked: int | None
) -> None:
    script = "head -c 5000000 /dev/zero; head -c 100 /dev/zero >&2; exit 4"
    body = {"command": "sh", "args": ["-c", script], "maxOutputBytes": asked}
    ran = (await bench.post("/run", body)).json()
    assert (ran["exitCode"], ran["stdoutTruncated"], ran["stderrTruncated"]) == (4, True, False)
    assert len(ran["stdout"]) == min(asked or 1 << 20, 1 << 20)
    assert len(ran["stderr"]) == 100


async def test_a_character_is_not_cut_in_two_and_what_is_no_text_is_replaced(bench: ProcessRig) -> None:
    ran = (await bench.post("/run", {"command": "echo", "args": ["ééé"], "maxOutputBytes": 3})).json()
    assert (ran["stdout"], ran["stdoutTruncated"]) == ("é", True)
    ran = (await bench.post("/run", {"command": "printf", "args": [r"a\377b"]})).json()
    assert ran["stdout"] == "a\ufffdb"
