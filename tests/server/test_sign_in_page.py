"""The sign-in page in a real browser, with the real application behind it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.async_api import Page, async_playwright, expect
from tests.browser import CHROMIUM, needs_browser
from tests.server.rig import Rig, open_rig

from legation.server.routes.sign_in import make_link

WAIT = 20.0  # seconds: the test's patience with the server

pytestmark = [pytest.mark.heavy, needs_browser]


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with open_rig("sqlite", tmp_path, request, public_url=url) as made, serving(made, listening):
            yield made


@asynccontextmanager
async def serving(rig: Rig, listening: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(rig.app, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        async with asyncio.timeout(WAIT):
            await task


@asynccontextmanager
async def browsing(complaints: list[str]) -> AsyncIterator[Page]:
    """A page that keeps what went wrong in it, but for answers that the test is about."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        try:
            yield page
        finally:
            await browser.close()


async def new_link(rig: Rig) -> str:
    return (await make_link(rig.services, rig.people["admin"], "local")).url


async def test_a_link_signs_in_once_and_leaves_no_code_behind(rig: Rig) -> None:
    complaints: list[str] = []
    link = await new_link(rig)
    requested: list[str] = []
    async with browsing(complaints) as page:
        page.on("request", lambda request: requested.append(request.url))
        async with page.expect_response("**/v1/sign-in") as answer:
            await page.goto(link)
        assert (await answer.value).status == 204
        await page.wait_for_url(lambda url: "/sign-in" not in url)
        me = await page.request.get(f"{rig.services.public_url}/v1/me")
        assert (await me.json())["user"] == rig.people["admin"]
        (kept,) = await page.context.cookies()
        assert (kept["name"], kept["httpOnly"], kept["sameSite"]) == ("legation_session", True, "Strict")
        assert (await page.evaluate("document.cookie")) == ""
    code = link.partition("#")[2]
    assert not [url for url in requested if code in url.partition("#")[0]]
    assert [each for each in complaints if "404" not in each] == []


async def test_a_link_that_is_used_up_says_what_to_do(rig: Rig) -> None:
    complaints: list[str] = []
    link = await new_link(rig)
    rig.clock.advance(601)
    async with browsing(complaints) as page:
        await page.goto(link)
        await expect(
            page.get_by_text("This link was used already, or is older than ten minutes.")
        ).to_be_visible()
        await expect(page.get_by_text("legation users link")).to_be_visible()
        await expect(page.get_by_role("button")).to_be_hidden()
        assert page.url == f"{rig.services.public_url}/sign-in"
    assert [each for each in complaints if "401" not in each] == []


async def test_without_a_code_the_page_asks_for_a_link(rig: Rig) -> None:
    complaints: list[str] = []
    async with browsing(complaints) as page:
        await page.goto(f"{rig.services.public_url}/sign-in")
        await expect(page.get_by_text("To sign in, open a sign-in link.")).to_be_visible()
    assert complaints == []


async def test_too_many_tries_can_be_tried_again(rig: Rig) -> None:
    wrong = (await new_link(rig)).partition("#")[0] + "#wrong"
    for _ in range(10):
        await rig.client.post(f"{rig.services.public_url}/v1/sign-in", json={"code": "wrong"})
    async with browsing([]) as page:
        await page.goto(wrong)
        again = page.get_by_role("button", name="Try again")
        await expect(again).to_be_visible()
        await expect(page.get_by_text("Too many tries. Wait 6 seconds")).to_be_visible()
        rig.clock.advance(6)
        async with page.expect_response("**/v1/sign-in") as answer:
            await again.click()
        assert (await answer.value).status == 401
