"""The inbox in a real browser: what waits, the card of each, and answers by key, press and thumb."""

import re
import sqlite3
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, expect
from tests.browser import needs_browser
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard, shot

pytestmark = [pytest.mark.heavy, needs_browser]
expect.set_options(timeout=WAIT * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def made(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("inbox"), browser) as opened:
        yield opened


@pytest.fixture
def house(made: Dashboard) -> Iterator[Dashboard]:
    yield made
    complaints, made.complaints[:] = list(made.complaints), []
    assert complaints == []


def open_item(page: Page, house: Dashboard, approval: str) -> None:
    page.goto(f"{house.origin}/ui/inbox/{approval}")
    expect(page.get_by_role("heading", level=1).last).to_be_focused()


def press(page: Page, key: str, then: str) -> None:
    """Press a key until it counted: a card is not armed in its first moment, and the window must have settled."""
    for _ in range(100):
        page.keyboard.press(key)
        if page.locator(then).count():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{key} did nothing: {then} is not there")


def test_where_nothing_has_run_the_inbox_is_the_guided_start(house: Dashboard) -> None:
    with house.visitor() as page:
        page.goto(f"{house.origin}/")
        page.wait_for_url("**/ui/inbox")
        expect(page.get_by_role("heading", name="Nothing has run here yet.")).to_be_visible()
        shot(page, "nothing-yet")


def test_a_notices_link_leads_through_sign_in_back_to_the_item(house: Dashboard) -> None:
    house.begin("noticed", "ask write a.txt hello")
    approval = house.pending("noticed")
    with house.visitor(signed_in=False) as page:
        page.goto(f"{house.origin}/ui/inbox/{approval}")
        expect(page.get_by_role("heading", name="Sign in to Legation")).to_be_visible()
        shot(page, "sign-in")
        # The link is opened in another tab, as by a click in a terminal: both tabs are then at the item.
        other = house.page(page.context)
        other.goto(house.new_link())
        other.wait_for_url(f"**/ui/inbox/{approval}")
        expect(other.get_by_role("heading", name="Edit a.txt")).to_be_visible()
        expect(page.get_by_role("heading", name="Edit a.txt")).to_be_visible()
        assert page.url == f"{house.origin}/ui/inbox/{approval}"
    # And a link that is pasted does the same in one tab.
    with house.visitor(signed_in=False) as page:
        page.goto(f"{house.origin}/ui/inbox/{approval}")
        page.get_by_label("Sign-in link").fill("http://x/sign-in#wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("used already, or is older than ten minutes")
        page.get_by_label("Sign-in link").fill(house.new_link())
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Edit a.txt")).to_be_visible()
    house.post(f"/approvals/{approval}/deny")


def test_an_edit_is_read_and_approved_by_key_with_its_digest(house: Dashboard) -> None:
    house.begin(
        "edits",
        "ask write hello.py def a():\\n    return 1\\n",
        "ask edit hello.py return 1 => return 2",
        "say all done",
    )
    first = house.pending("edits")
    sent: list[Request] = []
    with house.visitor() as page:
        page.on("request", lambda made: sent.append(made) if "/approve" in made.url else None)
        page.goto(f"{house.origin}/ui/inbox")
        expect(page).to_have_title(re.compile(r"^\(\d+\) Legation$"))
        # A key before the card can have been read is dropped: this one comes at once with the card.
        page.add_init_script(
            "new MutationObserver(() => { if (document.querySelector('.bar') && !window.early) { window.early = 1;"
            " document.dispatchEvent(new KeyboardEvent('keydown', {key: 'a', bubbles: true})); } })"
            ".observe(document, {childList: true, subtree: true})"
        )
        open_item(page, house, first)
        assert page.evaluate("window.early") == 1
        expect(page.locator(".levels li")).to_have_count(3)
        expect(page.locator(".levels .waits")).to_contain_text("You")
        expect(page.locator(".diff .add .code").nth(1)).to_have_text("    return 1")
        expect(page.locator(".evidence")).to_contain_text("inside the workspace, through no link")
        shot(page, "approval-edit")
        for how in ("{key: 'a', repeat: true}", "{key: 'a', ctrlKey: true}", "{key: 'a', isComposing: true}"):
            page.evaluate(
                f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{bubbles: true, ...{how}}}))"
            )
        assert sent == []
        press(page, "a", ".outcome")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
        (answer,) = sent
        assert answer.post_data_json == {"digest": house.get(f"/approvals/{first}")["digest"]}
        # The selection stays, though the next ask has come.
        second = house.pending("edits")
        expect(page.locator(f"[data-id={second}]")).to_be_visible()
        assert page.url.endswith(first)
        expect(page.locator(".row.chosen")).to_contain_text("approved")
        page.keyboard.press("j")
        page.wait_for_url(f"**/{second}")
        expect(page.locator(".diff .del mark")).to_have_text("1")
        expect(page.locator(".diff .add mark")).to_have_text("2")
        press(page, "a", ".outcome")
    house.until(lambda: house.get("/v1/sessions/edits/snapshot")["snapshot"]["messages"])


def test_a_denial_takes_its_reason_to_the_agent_and_escape_decides_nothing(house: Dashboard) -> None:
    house.begin("denied", "ask write b.txt no")
    approval = house.pending("denied")
    with house.visitor() as page:
        open_item(page, house, approval)
        press(page, "d", "textarea")
        expect(page.get_by_label("Tell the agent why")).to_be_focused()
        page.keyboard.type("a d j")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Deny")).to_be_visible()
        assert house.get(f"/approvals/{approval}")["status"] == "pending"
        press(page, "d", "textarea")
        page.keyboard.type("put it into docs")
        page.keyboard.press("Enter")
        expect(page.locator(".outcome")).to_contain_text("Denied by you")
    events = house.get("/v1/streams/denied/events")["items"]
    (answer,) = [each["raw"] for each in events if each["type"] == "permission-answered"]
    assert (answer["outcome"], answer["message"]) == ("denied", "put it into docs")


def test_who_answers_second_is_told_who_was_first(house: Dashboard) -> None:
    house.begin("raced", "ask write c.txt x")
    approval = house.pending("raced")
    with house.visitor(house.person("Second", "approver")) as page:
        open_item(page, house, approval)
        # What the stream would tell is kept from this tab, so that it answers what somebody has answered.
        page.route("**/v1/inbox", lambda route: route.abort())
        sent: list[Request] = []
        page.on("request", lambda made: sent.append(made) if made.url.endswith("/approve") else None)
        page.route(f"**/approvals/{approval}", lambda route: route.continue_() if sent else route.abort())
        expect(page.get_by_role("button", name="Approve")).to_be_enabled()
        house.post(f"/approvals/{approval}/deny", {"reasoning": "no"})
        press(page, "a", ".outcome")
        expect(page.locator(".outcome")).to_contain_text(re.compile(r"owner denied this \d+ s before you\."))
        expect(page.locator(".outcome")).to_contain_text("The first answer stands; yours was not used.")
        expect(page.locator(".bar")).not_to_contain_text("Approved")


def test_an_answer_to_something_else_does_nothing_and_says_so(house: Dashboard) -> None:
    house.begin("changed", "ask write d.txt x")
    approval = house.pending("changed")
    with house.visitor() as page:
        told = house.get(f"/approvals/{approval}")
        page.route(f"**/approvals/{approval}", lambda route: route.fulfill(json={**told, "digest": "0" * 64}))
        open_item(page, house, approval)
        press(page, "a", ".bar [role=alert]")
        expect(page.locator(".bar")).to_contain_text("It changed while you looked")
    assert house.get(f"/approvals/{approval}")["status"] == "pending"
    house.post(f"/approvals/{approval}/deny")


def test_what_was_not_seen_to_its_end_takes_a_second_press(house: Dashboard) -> None:
    house.begin("unseen", "ask write long.txt " + "\\n".join(f"line {number}" for number in range(300)))
    approval = house.pending("unseen")
    with house.visitor() as page:
        open_item(page, house, approval)
        press(page, "a", "[aria-label='Approve anyway']")
        expect(page.locator(".bar")).to_contain_text("without having seen its end")
        assert house.get(f"/approvals/{approval}")["status"] == "pending"
        page.keyboard.press("Escape")
        expect(page.locator("[aria-label='Approve anyway']")).to_have_count(0)
        page.locator(".end").scroll_into_view_if_needed()
        press(page, "a", ".outcome")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")


def test_ten_thousand_files_and_a_path_outside_are_a_card_that_can_be_read(house: Dashboard) -> None:
    house.begin("huge", "ask write g.txt x")
    approval = house.pending("huge")
    told = house.get(f"/approvals/{approval}")
    files = [{**told["diffs"][0], "path": f"/elsewhere/{number}.json"} for number in range(10_000)]
    outside = [{"path": "/elsewhere/0.json", "real": "/elsewhere/0.json", "inside": False, "link": False}]
    with house.visitor() as page:
        page.route(
            f"**/approvals/{approval}",
            lambda route: route.fulfill(
                json={**told, "diffs": files, "paths": outside, "injection_risk": True}
            ),
        )
        open_item(page, house, approval)
        expect(page.get_by_role("button", name="9,950 more files")).to_be_attached()
        assert page.locator("*").count() < 3000
        expect(page.locator(".evidence")).to_contain_text("outside the workspace")
        expect(page.locator(".flag")).to_contain_text("Somebody else may have put the agent up to this")
        expect(page.locator(".bar .filled")).to_contain_text("Deny")
        expect(page.get_by_role("button", name="Allow for 15 min")).to_have_count(0)
        shot(page, "approval-flagged")
        press(page, "a", "[aria-label='Approve anyway']")
        expect(page.locator(".bar .filled")).to_contain_text("Back")
    assert house.get(f"/approvals/{approval}")["status"] == "pending"
    house.post(f"/approvals/{approval}/deny")


def test_a_command_that_cannot_be_read_to_its_end_takes_a_second_press(house: Dashboard) -> None:
    house.begin("unreadable", 'ask run sh -c "$STEPS"')
    approval = house.pending("unreadable")
    with house.visitor() as page:
        open_item(page, house, approval)
        expect(page.locator(".parts")).to_contain_text("nobody can know all that it runs")
        expect(page.locator(".bar .filled")).to_contain_text("Deny")
        press(page, "a", "[aria-label='Approve anyway']")
        expect(page.locator(".bar")).to_contain_text("though nobody can know all that it runs?")
        assert house.get(f"/approvals/{approval}")["status"] == "pending"
        press(page, "a", ".outcome")
    assert house.get(f"/approvals/{approval}")["status"] == "approved"


def test_identical_asks_are_one_row_and_one_answer(house: Dashboard) -> None:
    for name in ("api", "web"):
        house.begin(name, "ask run npm ci")
    approvals = [house.pending(name) for name in ("api", "web")]
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/inbox")
        row = page.locator(".row", has_text="npm ci")
        expect(row).to_have_count(1)
        expect(row.locator(".times")).to_have_text(re.compile("2$"))
        row.click()
        expect(page.locator(".members tr")).to_have_count(2)
        expect(page.locator(".command pre")).to_contain_text("npm ci")
        shot(page, "approval-group")
        press(page, "a", ".outcome")
    assert {house.get(f"/approvals/{each}")["status"] for each in approvals} == {"approved"}


def test_allowing_for_a_while_holds_in_this_session_and_folder(house: Dashboard) -> None:
    house.begin("granted", "ask write e.txt one", "ask edit e.txt one => two", "say no more questions")
    approval = house.pending("granted")
    with house.visitor() as page:
        open_item(page, house, approval)
        press(page, "t", "form.bar")
        expect(page.get_by_label("Edits of this session")).to_be_checked()
        shot(page, "approval-grant")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
        said = house.until(lambda: house.get("/v1/sessions/granted/snapshot")["snapshot"]["messages"])
        assert said[0]["content"][0]["text"] == "no more questions"
        # It stands on the card, with who gave it, and goes by a press.
        page.reload()
        grants = page.locator(".evidence section", has_text="Grants in force")
        expect(grants).to_contain_text("min left · by owner")
        grants.get_by_role("button", name="Revoke").click()
        expect(grants).to_contain_text("None.")
    (grant,) = [each for each in house.get("/grants") if each["session_id"] == "granted"]
    assert (grant["kinds"], grant["folder"], grant["active"]) == (
        ["edit"],
        house.get("/v1/sessions/granted")["directory"],
        False,
    )


def test_what_expired_is_asked_for_again_by_a_press(house: Dashboard) -> None:
    house.begin("late", "ask write late.txt x", "say it was not answered")
    approval = house.pending("late")
    # Nobody waits five minutes for a test: this is when its time was up.
    with sqlite3.connect(next(house.server.home.rglob("legation.db")), timeout=WAIT) as database:
        database.execute("update approval set expires_at = created_at + 1 where id = ?", (approval,))
    with house.visitor() as page:
        open_item(page, house, approval)
        expect(page.locator(".outcome")).to_contain_text("The agent was told that it expired")
        page.get_by_role("button", name="Ask it to try again").click()
        expect(page.get_by_text("It was asked to.")).to_be_visible()
    events = house.until(
        lambda: [
            each["raw"]
            for each in house.get("/v1/streams/late/events")["items"]
            if each["type"] == "prompt-started" and "nobody refused it" in str(each["raw"])
        ]
    )
    assert "late.txt" in str(events[0])


def test_a_question_is_answered_in_its_form(house: Dashboard) -> None:
    house.begin("asks", "elicit Which **database**? name:string size:integer fast:boolean")
    with house.visitor(dark=True) as page:
        page.goto(f"{house.origin}/ui/inbox")
        page.locator(".row", has_text="Which").click()
        expect(page.locator(".prose strong")).to_have_text("database")
        page.get_by_label("size").fill("many")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_text("This is needed.")).to_be_visible()
        expect(page.get_by_text("This is no number.")).to_be_visible()
        page.get_by_label("name").fill("postgres")
        page.get_by_label("size").fill("3")
        page.get_by_label("fast").check()
        shot(page, "question-dark")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".outcome")).to_contain_text("Answered by you")
        expect(page.locator(".row.chosen .why")).to_have_text("answered")
    (answer,) = house.until(
        lambda: [
            each["raw"]
            for each in house.get("/v1/streams/asks/events")["items"]
            if each["type"] == "question-answered"
        ]
    )
    assert answer["content"] == {"name": "postgres", "size": 3, "fast": True}


def test_what_went_wrong_or_is_ready_goes_when_it_was_looked_at(house: Dashboard) -> None:
    house.begin("fails", "error -32000 the model answered 401")
    house.begin("ended", "say done")
    house.until(lambda: {"fails", "ended"} <= {each["id"] for each in house.get("/v1/inbox")["items"]})
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/inbox")
        page.locator("[data-id=fails]").click()
        expect(page.locator(".item .flag")).to_contain_text("the model answered 401")
        shot(page, "went-wrong")
        # It stays while it is shown, and goes when somebody leaves it.
        expect(page.locator(".row.chosen")).to_contain_text("fails")
        page.locator("[data-id=ended]").click()
        expect(page.locator("[data-id=fails]")).to_have_count(0)


@pytest.mark.parametrize(
    ("role", "words"),
    [("viewer", "Answering takes the role approver."), ("operator", "Answering takes the role")],
)
def test_who_may_only_look_has_a_sentence_and_no_buttons(house: Dashboard, role: str, words: str) -> None:
    session = house.begin(f"for-{role}", f"ask write {role}.txt x")
    approval = house.pending(session)
    with house.visitor(house.person(role.title(), role)) as page:
        page.goto(f"{house.origin}/ui/inbox/{approval}")
        expect(page.locator(".bar")).to_contain_text(words)
        expect(page.locator(".bar button")).to_have_count(0)
        page.wait_for_timeout(600)
        page.keyboard.press("a")
        page.goto(f"{house.origin}/ui/sessions")
        expect(page.get_by_role("link", name="New session")).to_have_count(1 if role == "operator" else 0)
    assert house.get(f"/approvals/{approval}")["status"] == "pending"
    house.post(f"/approvals/{approval}/deny")


def test_an_approver_answers_with_one_thumb_on_a_phone(house: Dashboard) -> None:
    house.begin("thumb", "ask write f.txt one\\ntwo")
    approval = house.pending("thumb")
    with house.visitor(house.person("Grace", "approver"), phone=True, dark=True) as page:
        page.goto(f"{house.origin}/ui/inbox")
        expect(page.locator(".item")).to_be_hidden()
        shot(page, "phone-inbox-dark")
        page.locator(f"[data-id={approval}]").tap()
        expect(page.locator(".list")).to_be_hidden()
        button = page.get_by_role("button", name="Approve")
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 48
        assert box["x"] + box["width"] > 300  # the main action is where a right thumb is
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shot(page, "phone-approval-dark")
        expect(button).to_be_enabled()
        for _ in range(50):
            if page.locator(".outcome").count():
                break
            if button.count():
                button.tap()
            page.wait_for_timeout(100)
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
    assert house.get(f"/approvals/{approval}")["resolved_by_name"] == "Grace"
