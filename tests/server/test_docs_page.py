"""The interactive docs, in a real browser, with nothing but our own server to load from."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import expect, sync_playwright
from tests.browser import CHROMIUM, needs_browser
from tests.server.toy_app import ask, routes, toy_app

from legation.server.http.pages import ASSETS

WAIT = 20.0  # seconds: the test's patience with the server


async def test_every_file_is_served_with_its_type() -> None:
    app = toy_app()
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8"}
    for path in (ASSETS / "docs").iterdir():
        got = await ask(app, "GET", f"/docs/{path.name}")
        assert (got.status, got.body) == (200, path.read_bytes())
        assert got.header("content-type") == kinds[path.suffix]
    assert (await ask(app, "GET", "/docs/..%2Fapp.py")).status == 404
    assert (await ask(app, "GET", "/docs")).header("content-security-policy")


def test_no_file_loads_anything_from_elsewhere_or_holds_inline_code() -> None:
    for path in (ASSETS / "docs").iterdir():
        text = path.read_text()
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), path.name
        assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=|innerHTML|eval\(", text), (
            path.name
        )


@pytest.fixture
def address() -> Iterator[str]:
    config = uvicorn.Config(toy_app([routes]), loop="uvloop", http="httptools", log_level="warning")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(WAIT)


@contextlib.contextmanager
def browsing(address: str, fails: list[str]) -> Iterator[BrowserPage]:
    """A page that keeps what went wrong in it, and that can reach the server only."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: fails.append(str(error)))
        page.on("console", lambda said: fails.append(said.text) if "Content Security" in said.text else None)
        page.on("request", lambda made: fails.append(made.url) if not _ours(made.url, address) else None)
        yield page
        browser.close()


def _ours(url: str, address: str) -> bool:
    return url.startswith((f"{address}/", "data:,"))


@pytest.mark.heavy
@needs_browser
def test_an_operation_can_be_tried_with_the_keyboard_alone(address: str) -> None:
    fails: list[str] = []
    with browsing(address, fails) as page:
        page.goto(f"{address}/docs")
        expect(page.locator("details.operation")).to_have_count(12)
        page.locator("#token").fill("manager")
        page.locator("#token").blur()
        page.keyboard.press("/")
        page.keyboard.type("post /v1/things")
        expect(page.locator("details.operation:visible")).to_have_count(1)
        card = page.locator("#createThing")
        card.locator("summary").focus()
        page.keyboard.press("Enter")
        body = card.locator("textarea")
        assert '"title": "x"' in body.input_value()
        body.fill('{"title": "a thing"}')
        page.keyboard.press("Control+Enter")
        expect(card.locator(".outcome")).to_contain_text("201 Created")
        expect(card.locator("pre[aria-label^=Headers]")).to_contain_text("request-id: req_")
        expect(card.locator("pre[aria-label^=Body]")).to_contain_text('"title": "a thing"')
        page.keyboard.press("Control+Enter")
        expect(card.locator(".outcome")).to_contain_text("409")
    assert fails == []


@pytest.mark.heavy
@needs_browser
def test_a_link_opens_its_operation_and_parameters_are_sent(address: str) -> None:
    fails: list[str] = []
    with browsing(address, fails) as page:
        page.goto(f"{address}/docs#show")
        card = page.locator("#show")
        card.get_by_label("count").fill("7")
        card.get_by_label("flag").select_option("true")
        card.get_by_label("numbers").fill("1, 2")
        card.get_by_label("X-Tag").fill("blue")
        card.get_by_role("button", name="Send").click()
        answer = card.locator("pre[aria-label^=Body]")
        expect(answer).to_contain_text('"flag": true')
        expect(answer).to_contain_text(re.compile(r'"numbers": \[\s*1,\s*2\s*\]'))
        expect(answer).to_contain_text('"tag": "blue"')
        page.goto(f"{address}/docs#follow")
        stream = page.locator("#follow")
        page.locator("#token").fill("reader")
        stream.get_by_label("name", exact=True).fill("x")
        stream.get_by_role("button", name="Send").click()
        expect(stream.locator("pre[aria-label^=Body]")).to_contain_text("data: x")
    assert fails == []
