"""The dashboard in a browser: a recorded session opened and scrolled, and an ask answered by keyboard.

Chromium scrolls by `Input.synthesizeScrollGesture` at 3,000 px/s; frames are counted in the page. `EVENTS` says how many
are recorded: with diffs and markdown, as a long day of an agent leaves them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec
from playwright.sync_api import Page, sync_playwright

from bench.filler import BEGAN, details_of
from bench.measure import emit
from legation.host.options import SessionMeta
from legation.store.codec import Append, Create, SetMeta, key_of
from legation.store.datafolder import EVENTS, make_folder
from legation.store.sqlite import SqliteBackend
from legation.wire.api.server import ServerFile
from legation.wire.events import Event

COUNT = int(os.environ.get("EVENTS", "50000"))
RUNS = 5
SPEED = 3000  # px/s
DISTANCE = 9000  # px, each run
WAIT_MS = 120_000
NAME = "long"
FRAMES = """() => { window.frames_ = []; let last = performance.now(); window.on_ = true;
const step = (now) => { window.frames_.push(now - last); last = now; if (window.on_) requestAnimationFrame(step); };
requestAnimationFrame(step); }"""


def updates(count: int) -> Iterator[dict[str, object]]:
    """Prose, then a call with a diff in three updates, again and again."""
    for number in range(count):
        call = f"call-{number // 5}"
        path = f"/srv/projects/1/src/module_{number // 5 % 200}.py"
        old = "\n".join(f"value_{line} = {line}" for line in range(12))
        match number % 5:
            case 0 | 1:
                text = f"Part **{number}**: the `cache` keeps\n\n- one entry\n- a *limit* of {number}\n"
                yield {
                    "sessionUpdate": "agent_message_chunk",
                    "messageId": f"m{number}",
                    "content": {"type": "text", "text": text},
                }
            case 2:
                diff = {
                    "type": "diff",
                    "path": path,
                    "oldText": old,
                    "newText": old.replace("= 5", f"= {number}"),
                }
                yield {
                    "sessionUpdate": "tool_call",
                    "toolCallId": call,
                    "title": f"Edit {path}",
                    "kind": "edit",
                    "status": "pending",
                    "locations": [{"path": path}],
                    "content": [diff],
                }
            case 3:
                yield {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "in_progress"}
            case _:
                yield {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed"}


def record(folder: Path, count: int) -> None:
    make_folder(folder)
    backend = SqliteBackend(folder / EVENTS)
    backend.open(lambda _: None)
    key, details = key_of(NAME, "local"), details_of(1)
    meta = SessionMeta(
        agent_session_id="native",
        cwd="/srv/projects/1",
        agent_definition_id=details.agent,
        title="A long day",
        details=details.plain(),
    )
    rows = [
        Event(seq, BEGAN + seq, str(update["sessionUpdate"]).replace("_", "-"), msgspec.json.encode(update))
        for seq, update in enumerate(updates(count), 1)
    ]
    try:
        backend.commit([Create(key, "local"), SetMeta(key, meta.encode())])
        for start in range(0, len(rows), 5000):
            backend.commit([Append(key, rows[start : start + 5000])])
    finally:
        backend.close()


@contextmanager
def server(home: Path) -> Iterator[tuple[str, httpx2.Client]]:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LEGATION_SUPERVISOR_WAIT": "0"}
    argv = [sys.executable, "-m", "legation", "up", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        link = process.stdout.readline().decode().partition(": ")[2].strip()
        file = msgspec.json.decode((home / ".local/share/legation/server.json").read_bytes(), type=ServerFile)
        try:
            credential = {"Authorization": f"Bearer {file.token}"}
            with httpx2.Client(base_url=file.url, headers=credential, timeout=60) as client:
                yield link, client
        finally:
            process.terminate()
            process.wait(20)


def opened(page: Page, origin: str) -> float:
    """Seconds from the address to the last row on the screen."""
    started = time.perf_counter()
    page.goto(f"{origin}/ui/sessions/{NAME}")
    page.locator(".turn .diff").last.wait_for()
    return time.perf_counter() - started


def scrolled(page: Page) -> tuple[float, float]:
    """Median frames a second and the 95th percentile of a frame in ms, while it scrolls up."""
    box = page.locator(".virtual").bounding_box()
    assert box is not None
    page.evaluate(FRAMES)
    page.context.new_cdp_session(page).send(
        "Input.synthesizeScrollGesture",
        {
            "x": box["x"] + 300,
            "y": box["y"] + 200,
            "yDistance": DISTANCE,
            "speed": SPEED,
            "gestureSourceType": "mouse",
        },
    )
    frames = sorted(page.evaluate("() => { window.on_ = false; return window.frames_; }"))
    return 1000 / statistics.median(frames), frames[int(len(frames) * 0.95)]


def answered(page: Page, origin: str, client: httpx2.Client) -> float:
    """Seconds from the agent's request to the answered approval: the page is open, `j` and `a` are pressed when it shows."""
    page.goto(f"{origin}/ui/inbox")
    page.locator(".list").wait_for()
    client.post("/v1/sessions/quick", json={"agent": "rehearsal"}).raise_for_status()
    started = time.perf_counter()
    client.post(
        "/v1/sessions/quick/messages", json={"message": "#!rehearse\nask write a.txt hello"}
    ).raise_for_status()
    page.locator(".row.you").wait_for()
    page.keyboard.press("j")
    page.locator(".bar .filled").wait_for()
    while not page.locator(".outcome.approved").count():
        page.keyboard.press("a")
        page.wait_for_timeout(20)
    return time.perf_counter() - started


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        home = Path(folder)
        record(home / ".local/share/legation", COUNT)
        with server(home) as (link, client):
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(WAIT_MS)
            page.goto(link)
            page.wait_for_url("**/ui/**")
            origin = link.partition("/sign-in")[0]
            openings = [opened(page, origin) for _ in range(RUNS)]
            page.locator(".took").last.wait_for()
            page.wait_for_timeout(2000)
            rates, slow = zip(*(scrolled(page) for _ in range(RUNS)), strict=True)
            answer = answered(page, origin, client)
            browser.close()
    emit(
        {
            "open s": statistics.median(openings),
            "frames/s": statistics.median(rates),
            "p95 frame ms": statistics.median(slow),
            "asked to answered s": answer,
        }
    )


if __name__ == "__main__":
    main()
