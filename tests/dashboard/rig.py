"""A real `legation up`, rehearsal agents, and a real browser that keeps what went wrong in its pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from tests.browser import CHROMIUM
from tests.cli.command import rehearse
from tests.cli.server_process import Running, running

WAIT = 60.0  # seconds for anything to happen: the machine's time
SCREENS = Path(__file__).parents[2] / ".screens"  # pictures of every page: what a run of the tests leaves
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 800}


@dataclass
class Dashboard:
    """A server and a browser; each visitor is a context of its own."""

    server: Running
    browser: Browser
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link = self.server.line().partition(": ")[2].strip()
        self.origin = self.link.partition("/sign-in")[0]
        self.renew()

    def renew(self) -> None:
        """Take up address and token of the server that runs now."""
        file = self.server.server_file()
        credential = {"Authorization": f"Bearer {file.token}"}
        self.api = httpx2.Client(base_url=file.url, headers=credential, timeout=WAIT)

    def get(self, path: str) -> Any:
        return self.api.get(path).raise_for_status().json()

    def post(self, path: str, body: object = None) -> Any:
        told = self.api.post(path, json={} if body is None else body).raise_for_status()
        return told.json() if told.content else None

    def begin(self, session: str, *steps: str, **more: object) -> str:
        """Begin a session of the rehearsal agent that plays these steps."""
        self.post(f"/v1/sessions/{session}", {"agent": "rehearsal", "title": session, **more})
        self.say(session, *steps)
        return session

    def say(self, session: str, *steps: str) -> None:
        self.api.post(
            f"/v1/sessions/{session}/messages", json={"message": rehearse(*steps)}
        ).raise_for_status()

    def pending(self, session: str) -> str:
        """Wait until a session's agent asks, and a person is asked; return the approval."""

        def asked() -> str | None:
            found = [each for each in self.get("/v1/inbox")["items"] if each["sessionId"] == session]
            return next((each["id"] for each in found if each["section"] == "you"), None)

        return str(self.until(asked))

    def until(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT
        while not (found := look()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)
        return found

    def new_link(self, user: str | None = None) -> str:
        return str(self.post("/v1/sign-in-links", {"user": user} if user else {})["url"])

    def person(self, name: str, role: str) -> str:
        return str(self.post("/v1/users", {"name": name, "role": role})["id"])

    @contextmanager
    def visitor(
        self, user: str | None = None, *, phone: bool = False, dark: bool = False, signed_in: bool = True
    ) -> Iterator[Page]:
        """A person's own browser; whatever leaves the origin, throws or breaks the content policy is a complaint."""
        context = self.browser.new_context(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
            has_touch=phone,
            is_mobile=phone,
            reduced_motion="reduce",  # a colour on its way to another is no colour to judge
        )
        context.set_default_timeout(WAIT * 1000)
        page = self.page(context)
        try:
            if signed_in:
                self.sign_in(context, user)
            yield page
        finally:
            context.close()

    def sign_in(self, context: BrowserContext, user: str | None) -> None:
        """Do what the page of a sign-in link does, without loading it: that page is the subject of tests of its own."""
        code = self.new_link(user).partition("#")[2]
        headers = {"Host": self.origin.partition("//")[2], "Origin": self.origin}
        told = httpx2.post(
            self.api.base_url.join("/v1/sign-in"), json={"code": code}, headers=headers, timeout=WAIT
        )
        cookies = SimpleCookie(told.raise_for_status().headers["set-cookie"])
        context.add_cookies(
            [{"name": each.key, "value": each.value, "url": self.origin} for each in cookies.values()]
        )

    def page(self, context: BrowserContext) -> Page:
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(f"{error}\n{error.stack}"))
        page.on("console", lambda said: self._hear(said.text) if said.type == "error" else None)
        page.on("request", lambda made: self._look(made.url))
        return page

    def _hear(self, text: str) -> None:
        if "Failed to load resource" not in text:  # an answer that the test is about
            self.complaints.append(text)

    def _look(self, url: str) -> None:
        if not url.startswith((f"{self.origin}/", "data:", "blob:")):
            self.complaints.append(f"a request left: {url}")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def dashboard(home: Path, browser: Browser, **env: str) -> Iterator[Dashboard]:
    # Nobody supervises: what a policy leaves to a supervisor is a person's at once.
    with running(home, **{"LEGATION_SUPERVISOR_WAIT": "0", **env}) as server:
        made = Dashboard(server, browser)
        try:
            yield made
        finally:
            made.api.close()
            made.server.stop()


def shot(page: Page, name: str) -> None:
    """Keep a picture of a page."""
    SCREENS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENS / f"{name}.png")
