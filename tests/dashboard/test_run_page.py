"""Runs in a real browser: the list, one run as it happens and when it has ended, and the form for a new one."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect
from tests.browser import needs_browser
from tests.cli.command import rehearse
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard, shot

pytestmark = [pytest.mark.heavy, needs_browser]
expect.set_options(timeout=WAIT * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def made(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("runs"), browser) as opened:
        yield opened


@pytest.fixture
def house(made: Dashboard) -> Iterator[Dashboard]:
    yield made
    complaints, made.complaints[:] = list(made.complaints), []
    assert complaints == []


def submit(house: Dashboard, *steps: str) -> str:
    return str(house.post("/v1/runs", {"agent": "rehearsal", "prompt": rehearse(*steps)})["id"])


def ended(house: Dashboard, run: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        told: dict[str, Any] = house.get(f"/v1/runs/{run}")
        return told if told["endedAt"] else None

    found: dict[str, Any] = house.until(look)
    return found


def waits_for(house: Dashboard, run: str) -> str:
    def asked() -> str | None:
        items = house.get("/v1/inbox")["items"]
        return next((each["id"] for each in items if (each["sessionId"] or "").startswith(run)), None)

    return str(house.until(asked))


def view(page: Page, name: str) -> None:
    page.get_by_role("group", name="View").first.get_by_role("button", name=re.compile(f"^{name}")).click()


def test_a_run_is_seen_from_its_ask_to_its_patch(house: Dashboard) -> None:
    run = submit(
        house,
        "title Cache the pages",
        "plan look; fix",
        "say The **cache** is a `dict`.",
        "plan-done 1",
        "ask write cache.py x = 1\\n",
        "usage 38000 200000 0.42",
        "say It is done.",
    )
    approval = waits_for(house, run)
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/runs/{run}")
        expect(page.locator("h1")).to_contain_text("Cache the pages")
        expect(page.locator("h1 .chip")).to_have_text("Waiting on you")
        expect(page.locator(".filled")).to_contain_text("Look and answer")  # the one next thing to do
        shot(page, "run-waiting")
        # From the card back to where it was asked, by keys alone.
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/ui/inbox/{approval}")
        expect(page.get_by_role("heading", level=1).last).to_be_focused()
        expect(page.locator(".diff .add .code")).to_have_text("x = 1")
        page.keyboard.press("o")
        page.wait_for_url(f"**/ui/runs/{run}")
        view(page, "Transcript")
        expect(page.locator(".markdown strong")).to_have_text("cache")
        expect(page.locator(".call.waits .decision")).to_contain_text("waits for an answer")
        house.post(f"/approvals/{approval}/approve")
        expect(page.locator(".markdown", has_text="It is done.")).to_be_visible()
        expect(page.locator(".decision")).to_contain_text("approved by owner")
        expect(page.locator("h1 .chip")).to_have_text("Succeeded")
        view(page, "Overview")
        expect(page.locator(".run-columns")).to_contain_text("$0.42")
        expect(page.locator(".run-columns")).to_contain_text("Left behind: nothing")
        expect(page.locator(".track .done")).to_have_count(6)
        expect(page.locator(".filled")).to_have_text("Review the patch")
        shot(page, "run-succeeded")
        page.get_by_role("button", name="Review the patch").click()
        expect(page.locator(".diff figcaption")).to_contain_text("cache.py")
        expect(page.locator(".diff .add .code")).to_have_text("x = 1")
        expect(page.locator(".run-foot")).to_contain_text("attempt 1")
        shot(page, "run-changes")
        for name, words in (("Decisions", "approved by owner"), ("Raw events", "permission-asked")):
            view(page, name)
            expect(page.locator(".run-body")).to_contain_text(words)
        assert "view=raw" in page.url


def test_a_failed_run_says_class_and_reason_and_is_resumed(house: Dashboard) -> None:
    run = submit(house, "say about to fail", "crash 3")
    assert ended(house, run)["errorClass"] == "agent_failed"
    with house.visitor(dark=True) as page:
        page.goto(f"{house.origin}/ui/runs/{run}")
        expect(page.locator(".flag")).to_contain_text("agent_failed")
        expect(page.locator(".track .bad")).to_contain_text("failed", ignore_case=True)
        shot(page, "run-failed-dark")
        page.get_by_role("button", name="Resume…").click()
        expect(page.get_by_role("form", name="Resume")).to_contain_text("attempt 2")
        page.get_by_role("button", name="Resume it").click()
        house.until(lambda: house.get(f"/v1/runs/{run}")["attempt"] == 2)
        ended(house, run)
        page.reload()
        expect(page.locator(".run-columns")).to_contain_text("attempt 1 ended")


def test_a_run_is_cancelled_by_two_presses_and_escape_is_none(house: Dashboard) -> None:
    run = submit(house, "say begun", "stall 600")
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/runs/{run}?view=transcript")
        expect(page.locator(".markdown", has_text="begun")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("button", name="Yes, cancel it")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Yes, cancel it")).to_have_count(0)
        assert house.get(f"/v1/runs/{run}")["cancelRequestedAt"] is None
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Yes, cancel it").click()
        expect(page.locator("h1 .chip")).to_have_text("Cancelled")
        expect(page.locator(".composer")).to_contain_text("This run has ended")


def test_what_is_said_to_a_run_and_its_pause_reach_the_server(house: Dashboard) -> None:
    run = submit(house, "say begun", "stall 600")
    sent: list[Request] = []

    def take(route: Route) -> None:
        sent.append(route.request)
        route.fulfill(status=202, json={})

    with house.visitor() as page:
        for word in ("messages", "pause"):
            page.route(f"**/v1/runs/{run}/{word}", take)
        page.goto(f"{house.origin}/ui/runs/{run}?view=transcript")
        expect(page.locator(".markdown", has_text="begun")).to_be_visible()
        page.get_by_label("Say something").fill("and now the tests")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_label("Say something")).to_have_value("")
        assert sent[0].post_data_json == {"prompt": "and now the tests"}
        pause = page.get_by_role("button", name="Pause")
        expect(pause).to_be_visible()
        pause.click()
        house.until(lambda: len(sent) == 2)
    house.post(f"/v1/runs/{run}/cancel")
    ended(house, run)


def test_the_list_tells_state_by_progress_and_keeps_its_search_in_the_address(house: Dashboard) -> None:
    run = submit(house, "say findable")
    failed = submit(house, "crash 3")
    for each in (run, failed):
        ended(house, each)
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/runs")
        row = page.locator(".run-row", has=page.locator(f"a[href$='{failed}']"))
        expect(row).to_contain_text("agent_failed")
        expect(row.locator(".chip")).to_have_text("Failed")
        shot(page, "runs")
        page.keyboard.press("/")
        page.keyboard.type("findable")
        expect(page.locator(".run-row")).to_have_count(1)
        assert page.url.endswith("/ui/runs?q=findable")
        page.reload()
        expect(page.locator(".run-row")).to_have_count(1)
        page.get_by_label("State").select_option("failed")
        expect(page.locator(".run-row")).to_have_count(0)
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".run-row").first).to_be_visible()
        assert page.url.endswith("/ui/runs")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/runs/run_*")
        expect(page.locator(".track")).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("r")
        page.wait_for_url("**/ui/runs")


@pytest.mark.parametrize("phone", [False, True])
def test_a_page_that_is_longer_than_the_window_is_scrolled_and_not_cut(house: Dashboard, phone: bool) -> None:
    with house.visitor(phone=phone) as page:
        page.set_viewport_size({"width": 390 if phone else 1440, "height": 420})
        page.goto(f"{house.origin}/ui/agents")
        last = page.locator(".table tr").last
        expect(last).to_be_attached()
        assert (
            page.evaluate(
                "(() => { const e = document.querySelector('.panel'); return e.scrollHeight - e.clientHeight; })()"
            )
            <= 1
        )
        last.scroll_into_view_if_needed()
        expect(last).to_be_in_viewport()


def test_a_new_run_begins_from_the_form_and_a_key_is_in_no_address(house: Dashboard) -> None:
    with house.visitor() as page:
        page.goto(
            f"{house.origin}/ui/runs/new?agent=claude-acp&prompt=Fix%20it&directory=https://git.example.com/a.git"
        )
        expect(page.get_by_role("button", name="Start the run")).to_be_disabled()
        expect(page.locator(".note.bad")).to_contain_text("needs a key for a run")
        page.get_by_label("Key for the model").fill("canary-of-a-key")
        expect(page.get_by_role("button", name="Start the run")).to_be_enabled()
        expect(page.locator(".same").first).to_contain_text("--repo 'https://git.example.com/a.git'")
        expect(page.locator(".same").last).to_contain_text('GitPlace(url="https://git.example.com/a.git")')
        assert "canary" not in page.url + page.locator(".two > div").last.inner_text()
        assert page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})") == "{}"
        shot(page, "new-run")
        page.goto(f"{house.origin}/ui/runs")
        expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        page.keyboard.press("n")
        page.wait_for_url("**/ui/runs/new")
        page.get_by_label("What should be done").fill(rehearse("say from the form"))
        expect(page.locator(".same").first).to_contain_text("legation run '#!rehearse")
        expect(page.locator(".same").first).to_contain_text("--agent rehearsal")
        page.keyboard.press("Control+Enter")
        page.wait_for_url("**/ui/runs/run_*")
        expect(page.locator("h1 .chip")).to_have_text("Succeeded")
        expect(page.locator(".run-columns .markdown")).to_have_text("from the form")
        # An address that names none, and one of nobody's.
        page.goto(f"{house.origin}/ui/runs/run_absent")
        expect(page.get_by_role("heading", name="There is no such run here.")).to_be_visible()
