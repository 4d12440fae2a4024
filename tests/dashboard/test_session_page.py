"""The page of a session in a real browser: live, harmless whatever the agent says, and whole after a server's end."""

import base64
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.browser import needs_browser
from tests.cli.command import rehearse
from tests.cli.server_process import Running
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard, shot

pytestmark = [pytest.mark.heavy, needs_browser]
expect.set_options(timeout=WAIT * 1000)

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def made(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("session"), browser) as opened:
        yield opened


@pytest.fixture
def house(made: Dashboard) -> Iterator[Dashboard]:
    yield made
    complaints, made.complaints[:] = list(made.complaints), []
    assert complaints == []


def test_a_turn_is_seen_as_it_happens_and_spoken_to(house: Dashboard) -> None:
    house.begin(
        "live",
        "plan look; fix",
        "think let me see what is there",
        "say The **cache** is a `dict`.",
        "plan-done 1",
        "ask write cache.py x = 1\\n",
        "usage 38000 200000 0.42",
        "say after it",
    )
    approval = house.pending("live")
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/sessions/live")
        expect(page.locator(".head .chip")).to_contain_text("Waiting on you")
        expect(page.locator(".markdown strong")).to_have_text("cache")
        expect(page.locator(".plan li.completed")).to_have_count(1)
        # What waits is one line that leads to its card; whoever may only look opens it here.
        expect(page.locator(".call.waits")).to_contain_text("waits for an answer")
        expect(page.locator(".diff")).to_have_count(0)
        page.locator(".call.waits .fold").click()
        expect(page.locator(".diff .add .code")).to_have_text("x = 1")
        fold = page.get_by_role("button", name=re.compile("Thought"))
        expect(page.locator(".thought-text")).to_have_count(0)
        fold.click()
        expect(page.locator(".thought-text")).to_have_text("let me see what is there")
        shot(page, "session-waiting")
        # Filled is what waits; a message is a second matter.
        expect(page.locator(".composer .filled")).to_have_text(re.compile("Look and answer"))
        house.post(f"/approvals/{approval}/approve", {"reasoning": "fine"})
        expect(page.locator(".markdown", has_text="after it")).to_be_visible()
        expect(page.locator(".decision")).to_contain_text("approved by owner")
        expect(page.locator(".decision")).to_contain_text("careful:edit")
        expect(page.locator(".facts-column")).to_contain_text("$0.42 so far")
        expect(page.locator(".head .chip")).to_contain_text("Idle")
        # A word to it, by keyboard alone.
        page.get_by_label("Say something").fill(rehearse("say second turn", "stall 600"))
        page.keyboard.press("Control+Enter")
        expect(page.get_by_text("second turn", exact=True)).to_be_visible()
        page.get_by_role("button", name="Cancel turn").click()
        expect(page.get_by_text("The turn ended: cancelled")).to_be_visible()
        for view, words in (
            ("Changes", "cache.py"),
            ("Decisions", "approved by owner"),
            ("Raw", "permission-asked"),
        ):
            page.get_by_role("button", name=re.compile(f"^{view}")).click()
            expect(page.locator(".columns > .main")).to_contain_text(words)
            shot(page, f"session-{view.lower()}")
        assert f"view={view.lower()}" in page.url


HOSTILE = [
    "say <script>window.hit = 1</script><img src=x onerror='window.hit = 2'>",
    "say a [wiki](javascript:window.hit=3) and ![badge](http://cdn.tracker.example/badge.svg) here",
    "say [your bank](http://evil.example/login) or <a href='//evil.example' onclick='window.hit=4'>here</a>",
    "say ![dot](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+) and ![ok](data:image/png;base64,"
    + PIXEL
    + ")",
    "say report \u202efdp.exe\u202c and zero\u200bwidth",
    "title <b onclick=window.hit=5>Group the issues</b>",
    "ask write a\u202etxt.py <script>window.hit = 6</script>",
    "ask <img src=x onerror=window.hit=7>",
]


def test_hostile_content_is_harmless_and_nothing_leaves_the_origin(house: Dashboard) -> None:
    house.begin(
        "hostile", *HOSTILE[:7], "ask write long.txt " + "x" * 100_000, HOSTILE[7], title="<b>title</b>"
    )
    house.pending("hostile")
    with house.visitor(dark=True) as page:
        page.goto(f"{house.origin}/ui/sessions/hostile")
        expect(page.locator(".markdown").first).to_contain_text("<script>window.hit = 1</script>")
        expect(page.locator(".markdown .chip", has_text="not made a link")).to_be_visible()
        expect(page.locator(".markdown .chip", has_text="cdn.tracker.example")).to_contain_text("not loaded")
        expect(page.locator(".markdown .chip", has_text="evil.example")).to_have_text("evil.example")
        expect(page.locator(".mark", has_text="U+202E").first).to_be_visible()
        expect(page.locator(".mark", has_text="U+200B").first).to_be_visible()
        pictures = page.locator(".markdown img")
        expect(pictures).to_have_count(1)
        assert (pictures.get_attribute("src") or "").startswith("data:image/png")
        expect(page.locator("h1")).to_contain_text("<b")
        expect(page.get_by_role("button", name="98 kB more")).to_be_attached()
        shot(page, "session-hostile-dark")
        # Each ask in turn, on its card: text and marks, whatever it holds.
        for _ in range(3):
            approval = house.pending("hostile")
            page.goto(f"{house.origin}/ui/inbox/{approval}")
            expect(page.locator(".bar")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            house.post(f"/approvals/{approval}/deny")
        page.goto(f"{house.origin}/ui/sessions?q=hostile")
        expect(page.locator(".session-row")).to_have_count(1)
        page.goto(f"{house.origin}/ui/inbox")
        expect(page.locator(".list")).to_be_visible()
        assert page.evaluate("window.hit") is None
        assert page.locator("script:not([src])").count() == 0


def test_output_loses_its_control_sequences_and_long_lines_are_cut(house: Dashboard) -> None:
    text = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J"
    house.begin("output", f"ask run printf %s {base64.b64encode(text.encode()).decode()} | base64 -d")
    house.post(f"/approvals/{house.pending('output')}/approve")
    house.until(lambda: not house.get("/v1/sessions/output")["busy"])
    house.say("output", "big 2000000", "say afterwards")
    house.until(lambda: "afterwards" in json.dumps(house.get("/v1/sessions/output/snapshot")))
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/sessions/output")
        expect(page.locator(".markdown", has_text="afterwards")).to_be_visible()
        expect(page.locator(".output .bad", has_text="red")).to_be_attached()
        assert "\x1b" not in page.locator(".session").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_is_out_of_view_is_found_by_our_own_search(house: Dashboard) -> None:
    house.begin("long", "say the needle is here", "repeat 60 {", "think so", "say another *line*", "}")
    house.until(lambda: not house.get("/v1/sessions/long")["busy"])
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/sessions/long")
        expect(page.locator(".markdown").last).to_be_visible()
        expect(page.get_by_text("the needle is here", exact=True)).to_have_count(0)  # not in the page at all
        page.keyboard.press("Control+f")
        expect(page.get_by_label("Find in the transcript")).to_be_focused()
        page.keyboard.type("NEEDLE is")
        page.keyboard.press("Enter")
        expect(page.get_by_text("the needle is here", exact=True)).to_be_in_viewport()
        page.keyboard.type(" absent")
        page.keyboard.press("Enter")
        expect(page.get_by_role("search")).to_contain_text("Not found.")


def test_lists_keep_their_search_in_the_address(house: Dashboard) -> None:
    house.begin("findme", "say x")
    with house.visitor() as page:
        # Also while the list is still on its way: what is typed is searched for, and is no key of the page.
        page.route("**/v1/sessions?*", lambda _route: None)
        page.goto(f"{house.origin}/ui/sessions")
        expect(page.get_by_label("Search titles")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("findme")
        assert page.url.endswith("/ui/sessions?q=findme")
        page.unroute("**/v1/sessions?*")
        page.reload()
        expect(page.locator(".session-row")).to_have_count(1)
        assert page.url.endswith("/ui/sessions?q=findme")
        page.reload()
        expect(page.locator(".session-row")).to_have_count(1)
        page.get_by_label("State").select_option("ended")
        expect(page.locator(".session-row")).to_have_count(0)
        page.get_by_role("button", name="Clear").click()
        assert page.url.endswith("/ui/sessions")
        shot(page, "sessions")


def test_the_guided_start_is_one_press_to_a_real_approval(house: Dashboard) -> None:
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/start")
        shot(page, "start")
        page.get_by_role("button", name="Start the rehearsal").click()
        page.wait_for_url("**/ui/sessions/rehearsal-*")
        for _ in range(2):
            page.locator(".composer").get_by_role("link", name="Look and answer").click()
            expect(page.locator(".diff .add").first).to_be_visible()
            expect(page.get_by_role("button", name="Approve")).to_be_enabled()
            while not page.locator(".outcome").count():
                page.keyboard.press("a")
                page.wait_for_timeout(100)
            page.keyboard.press("o")
        expect(page.locator(".markdown", has_text="Each step stands above")).to_be_visible()
        expect(page.locator(".plan li.completed")).to_have_count(3)


def test_a_new_session_begins_from_the_form_that_shows_the_same_elsewhere(house: Dashboard) -> None:
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/sessions/new?agent=rehearsal&title=It%27s")
        page.get_by_label("What should be done").fill(rehearse("say it's here"))
        expect(page.locator(".same").first).to_contain_text("legation sessions new rehearsal '#!rehearse")
        expect(page.locator(".same").last).to_contain_text("legation.sessions.create(")
        shot(page, "new-session")
        page.keyboard.press("Control+Enter")
        page.wait_for_url("**/ui/sessions/ses-*")
        expect(page.locator(".markdown")).to_have_text("it's here")
        page.goto(f"{house.origin}/ui/agents")
        expect(page.get_by_role("row", name=re.compile("rehearsal"))).to_contain_text("Built in")
        shot(page, "agents")


def test_a_killed_and_a_restarted_server_leave_no_gap_and_no_duplicate(
    browser: Browser, tmp_path: Path
) -> None:
    with dashboard(tmp_path, browser) as house, house.visitor() as page:
        port = house.origin.rpartition(":")[2]
        house.begin("kept", "say before the kill")
        page.goto(f"{house.origin}/ui/sessions/kept")
        expect(page.locator(".markdown", has_text="before the kill")).to_be_visible()
        for at, number in enumerate((signal.SIGKILL, signal.SIGTERM)):
            house.api.close()
            house.server.stop(number)
            expect(page.locator(".reconnect")).to_contain_text("Reconnecting. What you see is as of")
            expect(page.get_by_text("Answers need the server.").first).to_be_visible()
            if at == 0:
                shot(page, "reconnecting")
            house.server = Running(tmp_path, "up", "--port", port)
            house.server.line()
            house.renew()
            expect(page.locator(".reconnect")).to_have_count(0)
            house.say("kept", f"say number {at} after the end")
            expect(page.get_by_text(f"number {at} after the end", exact=True)).to_be_visible()
        shown = page.locator(".turn .markdown").all_inner_texts()
        assert shown == ["before the kill", "number 0 after the end", "number 1 after the end"]
        assert page.evaluate("fetch('/v1/me').then(told => told.status)") == 200  # the sign-in holds


def test_neighbouring_reads_are_one_line_that_opens(house: Dashboard) -> None:
    folder = house.server.home / "reads"
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / f"{name}.txt").write_text(f"the text of {name}\n")
    looks = ("read one.txt", "read two.txt", "read three.txt")
    house.begin(
        "reads", *looks, "say between", "read one.txt", "read absent.txt", "say over", directory=str(folder)
    )
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/sessions/reads")
        expect(page.get_by_text("over", exact=True)).to_be_visible()
        fold = page.get_by_role("button", name="Read 3 files one.txt, two.txt, three.txt")
        expect(fold).to_be_visible()
        expect(page.locator(".turn.looks")).to_have_count(
            1
        )  # what failed is a line of its own, and so is what stands alone
        fold.click()
        within = page.locator(".turn.looks").get_by_role("button", name="Read two.txt")
        within.click()
        expect(page.locator(".turn.looks")).to_contain_text("the text of two")
        page.keyboard.press("/")
        page.keyboard.type("the text of three")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.marked.looks")).to_have_count(1)
