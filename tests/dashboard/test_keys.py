"""The rules of the keys in a real browser: a decision counts for what is shown and was there to be read, and nothing moves by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect
from tests.browser import needs_browser
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard

pytestmark = [pytest.mark.heavy, needs_browser]
expect.set_options(timeout=WAIT * 1000)

# From the moment in which a card's buttons come into the page a key with every frame, until one counts: how long that took.
EVERY_FRAME = """() => { const old = document.querySelector(".bar .filled"); window.took = new Promise((tell) => { let since = null;
const step = (now) => { const bar = document.querySelector(".bar .filled"); if (document.querySelector(".bar textarea")) return tell(now - since);
if (bar && bar !== old) { since ??= now; document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "d", bubbles: true})); }
requestAnimationFrame(step); }; requestAnimationFrame(step); }); }"""
KEY = "(how) => document.body.dispatchEvent(new KeyboardEvent('keydown', {bubbles: true, cancelable: true, ...how}))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def house(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("keys"), browser) as opened:
        yield opened
        assert opened.complaints == []


def answers(page: Page) -> list[Request]:
    """What is sent to decide anything, from now on."""
    sent: list[Request] = []
    words = ("/approve", "/deny", "/escalate", "/grants")
    page.on("request", lambda made: sent.append(made) if made.url.endswith(words) else None)
    return sent


def open_armed(page: Page, house: Dashboard, approval: str) -> None:
    """Open a card, and prove that its keys count: `d` opens the reason, which decides nothing."""
    page.goto(f"{house.origin}/ui/inbox/{approval}")
    expect(page.get_by_role("heading", level=1).last).to_be_focused()
    arm(page)


def arm(page: Page) -> None:
    for _ in range(200):
        page.keyboard.press("d")
        if page.locator("textarea").count():
            page.keyboard.press("Escape")
            expect(page.locator("textarea")).to_have_count(0)
            return
        page.wait_for_timeout(50)
    raise AssertionError("its keys never counted")


def test_no_key_counts_before_the_card_can_have_been_read(house: Dashboard) -> None:
    for name in ("first", "second"):
        house.begin(name, f"ask write {name}.txt x")
    first, second = house.pending("first"), house.pending("second")
    with house.visitor() as page:
        open_armed(
            page, house, first
        )  # the stream is live, and the window has its focus: only the card is new
        sent = answers(page)
        page.evaluate(EVERY_FRAME)
        page.locator(f"[data-id={second}]").click()
        expect(page.get_by_role("heading", name="Edit second.txt")).to_be_visible()
        assert page.evaluate("window.took") >= 400
        page.keyboard.press("Escape")
        expect(page.locator("textarea")).to_have_count(0)
        assert sent == []
        page.keyboard.press("a")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
        assert [each.url.rpartition("/approvals/")[2] for each in sent] == [f"{second}/approve"]
    house.post(f"/approvals/{first}/deny")


def test_repeats_combinations_and_keys_of_a_field_or_of_another_moment_decide_nothing(
    house: Dashboard,
) -> None:
    house.begin("still", "ask write still.txt x")
    approval = house.pending("still")
    with house.visitor() as page:
        open_armed(page, house, approval)
        sent = answers(page)
        for how in (
            {"key": "a", "repeat": True},
            {"key": "a", "ctrlKey": True},
            {"key": "a", "altKey": True},
            {"key": "a", "metaKey": True},
            {"key": "a", "isComposing": True},
            {"key": "Enter"},
            {"key": " "},
        ):
            page.evaluate(KEY, how)
        page.keyboard.press("/")
        expect(page.get_by_label("Search the inbox")).to_be_focused()
        page.keyboard.type("ad")
        page.keyboard.press("Escape")
        # The window comes to the front: what is typed or pressed for another one is not meant for this.
        page.evaluate(f"() => {{ window.dispatchEvent(new Event('focus')); ({KEY})({{key: 'a'}}); }}")
        page.evaluate(
            "() => { window.dispatchEvent(new Event('focus')); document.querySelector('.bar .filled').click(); }"
        )
        assert page.evaluate("document.activeElement.closest('.bar')") is None
        assert house.get(f"/approvals/{approval}")["status"] == "pending"
        assert sent == []
        page.goto(f"{house.origin}/ui/inbox/{approval}")
        arm(page)
        page.keyboard.press("a")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
        assert len(sent) == 1


def test_nothing_moves_the_selection_but_a_hand(house: Dashboard) -> None:
    house.begin("chosen", "ask run true", "ask write after.txt x")
    approval = house.pending("chosen")
    for number in range(5):  # what expires later stands below it
        house.begin(f"later-{number}", f"ask run echo {number}")
        house.pending(f"later-{number}")
    with house.visitor() as page:
        page.set_viewport_size({"width": 1440, "height": 420})
        open_armed(page, house, approval)
        row = page.locator(".row.chosen")
        before = row.bounding_box()
        # What expires sooner comes above it, and it stays where it was on the screen.
        for number in range(3):
            house.begin(f"sooner-{number}", f"ask write sooner-{number}.txt x")
        others = [house.pending(f"sooner-{number}") for number in range(3)]
        for other in others:
            expect(page.locator(f"[data-id={other}]")).to_be_attached()
        expect(row).to_have_attribute("data-id", approval)
        assert row.bounding_box() == before
        # Somebody else answers it, and one of the others: the card stays, with its outcome.
        house.post(f"/approvals/{approval}/deny", {"reasoning": "no"})
        house.post(f"/approvals/{others[0]}/deny")
        expect(page.locator(".outcome")).to_contain_text("Denied by")
        expect(page.locator(f"[data-id={others[0]}]")).to_have_count(0)
        expect(row).to_have_attribute("data-id", approval)
        assert page.url.endswith(approval)
        assert row.bounding_box() == before
        assert page.evaluate("document.activeElement.tagName") in ("H1", "BODY")
        page.keyboard.press("k")
        page.wait_for_url(lambda url: approval not in url)
    for other in others[1:]:
        house.post(f"/approvals/{other}/deny")


def test_while_the_server_is_away_no_key_and_no_button_decides(house: Dashboard) -> None:
    house.begin("away", "ask write away.txt x")
    approval = house.pending("away")
    with house.visitor() as page:
        open_armed(page, house, approval)
        sent = answers(page)
        page.context.set_offline(True)
        expect(page.locator(".reconnect")).to_contain_text("Answers need the server.")
        expect(page.get_by_role("button", name="Approve")).to_be_disabled()
        page.keyboard.press("a")
        page.keyboard.press("d")
        assert sent == []
        page.context.set_offline(False)
        expect(page.locator(".reconnect")).to_have_count(0)
        arm(page)
        page.keyboard.press("a")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")


def test_an_answer_to_a_group_reaches_those_that_were_shown(house: Dashboard) -> None:
    for name in ("one", "two"):
        house.begin(name, "ask run npm test")
    shown = [house.pending(name) for name in ("one", "two")]
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/inbox")
        page.locator(".row", has_text="npm test").click()
        expect(page.locator(".members tr")).to_have_count(2)
        arm(page)
        # One more asks for the same, in a folder that this person has not seen.
        page.route("**/v1/inbox", lambda route: route.abort())
        house.begin("three", "ask run npm test")
        late = house.pending("three")
        page.keyboard.press("a")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
    assert {house.get(f"/approvals/{each}")["status"] for each in shown} == {"approved"}
    assert house.get(f"/approvals/{late}")["status"] == "pending"
    house.post(f"/approvals/{late}/deny")


def test_e_gives_to_people_what_is_with_a_supervisor(browser: Browser, tmp_path: Path) -> None:
    with (
        dashboard(tmp_path, browser, LEGATION_SUPERVISOR_WAIT="1h") as house,
        house.visitor() as page,
    ):
        house.begin("left", "ask write left.txt x")

        def found_in(section: str) -> str | None:
            items = house.get("/v1/inbox")["items"]
            return next((each["id"] for each in items if each["section"] == section), None)

        approval = house.until(lambda: found_in("supervisor"))
        open_armed(page, house, approval)
        expect(page.get_by_role("button", name="Escalate")).to_be_visible()
        sent = answers(page)
        page.keyboard.press("e")
        expect(page.get_by_role("button", name="Escalate")).to_have_count(0)
        assert house.until(lambda: found_in("you")) == approval
        arm(page)
        page.keyboard.press("e")  # it is a person's by now
        page.keyboard.press("a")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
        assert [each.url.rpartition("/")[2] for each in sent] == ["escalate", "approve"]
        assert house.complaints == []


# What a browser shows outside of its window, kept; and a page that is in the background when the test says so.
TOLD = """window.told = []; window.away = false; window.asked = 0;
Object.defineProperty(document, "hidden", {get: () => window.away});
window.Notification = class { constructor(title, more) { window.told.push({title, ...more}); }
static permission = "PERMISSION"; static requestPermission() { window.asked += 1; return Promise.resolve("granted"); } };"""


def test_the_browser_tells_of_what_comes_while_nobody_looks_and_nothing_that_an_agent_said(
    house: Dashboard,
) -> None:
    with house.visitor() as page:
        page.add_init_script(TOLD.replace("PERMISSION", "default"))
        page.goto(f"{house.origin}/ui/")
        page.get_by_role("button", name="Tell me in the browser").click()
        expect(page.get_by_role("button", name="Tell me in the browser")).to_have_count(0)
        assert page.evaluate("asked") == 1
        house.begin("seen", "ask write seen.txt x")
        seen = house.pending("seen")
        expect(page.locator(f"[data-id={seen}]")).to_be_visible()
        assert page.evaluate("told") == []  # somebody looks
        page.evaluate("window.away = true")
        house.begin("unseen", "ask write a-name-of-the-agents.txt x")
        unseen = house.pending("unseen")
        assert house.until(lambda: page.evaluate("told")) == [
            {"title": "Legation: one more waits for you", "tag": "legation", "body": "local"}
        ]
    for approval in (seen, unseen):
        house.post(f"/approvals/{approval}/deny")
