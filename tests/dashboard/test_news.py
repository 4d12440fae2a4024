"""What the page says by itself: that something is new, hangs, loops, was left behind or is being installed; and what an address leads to."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, expect
from tests.approvals.notify.mail_server import Sink, sinking
from tests.browser import needs_browser
from tests.cli.command import rehearse
from tests.dashboard.rig import WAIT, Dashboard, chromium, dashboard, shot

pytestmark = [pytest.mark.heavy, needs_browser]
expect.set_options(timeout=WAIT * 1000)

PIECE = bytes(512 * 1024)


class SlowRegistry(ThreadingHTTPServer):
    """A registry that sends half a megabyte of each package, and no more until it may."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Slow)
        self.may_end = threading.Event()


class _Slow(BaseHTTPRequestHandler):
    server: SlowRegistry

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PIECE)
        self.server.may_end.wait(WAIT)

    def log_message(self, *_: object) -> None:
        pass


class Payments(ThreadingHTTPServer):
    """A tool that keeps what it is called with."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Payment)
        self.calls: list[bytes] = []


class _Payment(BaseHTTPRequestHandler):
    server: Payments

    def do_POST(self) -> None:
        self.server.calls.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"done": true}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def payments() -> Iterator[Payments]:
    with Payments() as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def registry() -> Iterator[SlowRegistry]:
    with SlowRegistry() as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.may_end.set()
        served.shutdown()


@pytest.fixture(scope="module")
def mailbox() -> Iterator[Sink]:
    """A mail server, in a thread of its own."""
    opened, over = threading.Event(), threading.Event()
    made: list[Sink] = []

    async def serve() -> None:
        async with sinking() as sink:
            made.append(sink)
            opened.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert opened.wait(WAIT)
        yield made[0]
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def made(
    browser: Browser,
    registry: SlowRegistry,
    mailbox: Sink,
    payments: Payments,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Dashboard]:
    tools = tmp_path_factory.mktemp("tools") / "tools.yaml"
    tools.write_text(
        f"tools:\n  - name: pay\n    url: http://127.0.0.1:{payments.server_port}/\n    kind: other\n"
    )
    env = {
        "LEGATION_TOOLS": str(tools),
        "NPM_CONFIG_REGISTRY": f"http://127.0.0.1:{registry.server_port}/",
        "LEGATION_SUPERVISOR_WAIT": "600",
        "LEGATION_NOTIFY_SMTP": mailbox.url(),
        "LEGATION_NOTIFY_FROM": "legation@example.org",
        "LEGATION_NOTIFY_TO": "ops@example.org",
    }
    with dashboard(tmp_path_factory.mktemp("news"), browser, **env) as opened:
        yield opened


@pytest.fixture
def house(made: Dashboard) -> Iterator[Dashboard]:
    yield made
    complaints, made.complaints[:] = list(made.complaints), []
    assert complaints == []


def test_an_installation_shows_its_bytes_is_cancelled_and_says_why_it_failed(
    house: Dashboard, registry: SlowRegistry
) -> None:
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/agents")
        line = page.get_by_role("row").filter(has=page.get_by_text("opencode", exact=True))
        line.get_by_role("button", name="Install").click()
        expect(line.get_by_role("status")).to_have_text(re.compile(r"Installing 0\.[5-9] of \d+ MB"))
        assert float(line.get_by_role("progressbar").get_attribute("value") or 0) >= len(PIECE)
        shot(page, "agents-installing")
        # It goes on while somebody looks elsewhere, until it is cancelled.
        page.keyboard.press("g")
        page.keyboard.press("s")
        page.wait_for_url("**/ui/sessions")
        page.keyboard.press("g")
        page.keyboard.press("a")
        line.get_by_role("button", name="Cancel").click()
        expect(line.get_by_role("button", name="Install")).to_be_visible()
        # Whoever comes back meanwhile sees the list as it is at the end.
        line.get_by_role("button", name="Install").click()
        expect(line.get_by_role("status")).to_have_text(re.compile("Installing"))
        page.goto(f"{house.origin}/ui/agents")
        assert line.get_by_role("button", name="Cancel").count() == 0  # it ended with its tab
        line.get_by_role("button", name="Install").click()
        expect(line.get_by_role("status")).to_have_text(re.compile("Installing"))
        page.keyboard.press("g")
        page.keyboard.press("s")
        page.wait_for_url("**/ui/sessions")
        page.keyboard.press("g")
        page.keyboard.press("a")
        expect(line.get_by_role("button", name="Cancel")).to_be_visible()
        page.route("**/v1/agents?no_cache=true", lambda asked: asked.fulfill(json={"agents": []}))
        line.get_by_role("button", name="Cancel").click()
        expect(line).to_have_count(0)
        page.unroute("**/v1/agents?no_cache=true")
        page.reload()
        other = page.get_by_role("row").filter(has=page.get_by_text("cursor", exact=True))
        expect(other).to_contain_text(
            "it is not on this machine; get it"
        )  # and no button that could only fail
        expect(other.get_by_role("button")).to_have_count(0)
        registry.may_end.set()
        line.get_by_role("button", name="Install").click()
        expect(line.get_by_role("alert")).to_have_text(re.compile("cannot fetch .* bytes"))
        expect(line.get_by_role("button", name="Install")).to_be_visible()


def test_a_known_address_is_sent_a_link_that_leads_back_to_where_somebody_wanted_to_go(
    house: Dashboard, mailbox: Sink
) -> None:
    house.post("/v1/users", {"name": "Grace", "email": "grace@example.org", "role": "approver"})

    def letter() -> str | None:
        found = [each for each in mailbox.letters if each.recipients == ["grace@example.org"]]
        return str(found[0].message.get_content()) if found else None

    with house.visitor(signed_in=False, phone=True) as page:
        page.goto(f"{house.origin}/ui/agents")
        for address in ("nobody@example.org", "grace@example.org"):  # one answer for both
            page.get_by_label("Mail address").fill(address)
            page.get_by_role("button", name="Send me a link").click()
            expect(page.get_by_role("status")).to_contain_text("If this is somebody's address here")
        shot(page, "sign-in-mail-phone")
        (link,) = re.findall(r"http\S+/sign-in#\S+", house.until(letter))
        page.goto(link)
        page.wait_for_url("**/ui/agents")
        expect(page.get_by_role("heading", name="Agents")).to_be_visible()


def test_other_arguments_are_approved_in_the_place_of_those_that_were_asked_for(
    house: Dashboard, payments: Payments
) -> None:
    token = house.post("/v1/tokens", {"label": "support-1", "kind": "agent"})["secret"]
    headers = {"Authorization": f"Bearer {token}"}
    answers: list[int] = []

    def call() -> None:
        params = {"amount": 700, "currency": "EUR"}
        answer = house.api.post("/tool/pay", json={"params": params}, headers=headers)
        answers.append(answer.status_code)

    caller = threading.Thread(target=call)
    caller.start()
    asked = house.until(
        lambda: [each for each in house.get("/approvals?status=pending") if each["tool"] == "pay"]
    )
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/inbox/{asked[0]['id']}")
        for _ in range(100):  # a card counts no key in its first moment
            page.keyboard.press("w")
            if page.locator("form.bar").count():
                break
            page.wait_for_timeout(100)
        field = page.locator("form.bar textarea")
        field.fill('{"amount": 70')
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("alert")).to_have_text("This is no JSON that can be read.")
        field.fill('{"amount": 70, "currency": "EUR"}')
        expect(page.get_by_role("alert")).to_have_count(0)
        shot(page, "approval-edit")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".outcome")).to_contain_text("Approved with other arguments.")
        page.get_by_role("link", name="an approval of their own").click()
        expect(page.locator(".outcome")).to_contain_text("Approved by you")
        expect(page.locator(".arguments")).to_contain_text("70")
    caller.join(WAIT)
    assert answers == [200]
    (sent,) = payments.calls
    assert b"700" not in sent
    assert b"70" in sent


def test_an_address_leads_to_its_event_which_is_marked_and_a_link_to_it_is_copied(house: Dashboard) -> None:
    house.begin(
        "long",
        *[f"say number {number}" if number % 2 else f"think of {number}" for number in range(160)],
        "say the end",
    )
    house.until(lambda: not house.get("/v1/sessions/long")["busy"])
    with house.visitor() as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(f"{house.origin}/ui/sessions/long")
        expect(page.get_by_text("the end", exact=True)).to_be_visible()
        expect(page.get_by_text("number 21", exact=True)).to_have_count(0)
        events = house.get("/v1/streams/long/events?limit=1000")["items"]
        seq = next(each["seq"] for each in events if '"number 21"' in str(each["raw"]).replace("'", '"'))
        page.goto(f"{house.origin}/ui/sessions/long#e{seq}")
        marked = page.locator(".turn.marked")
        expect(marked).to_have_count(1)
        expect(marked).to_contain_text("number 21")
        expect(marked).to_be_in_viewport()
        shot(page, "session-event")
        # Another by its time, which is a link; and one more to give away.
        other = page.locator(".turn", has_text="number 23")
        other.get_by_role("link", name=re.compile("^Event ")).click()
        expect(marked).to_contain_text("number 23")
        there = page.url
        assert "#e" in there
        other.hover()
        other.get_by_role("button", name="Copy a link to this").click()
        assert page.evaluate("navigator.clipboard.readText()") == there
        page.go_back()
        expect(marked).to_contain_text("number 21")
        # An event within a row leads to the row; the raw view has it by itself.
        page.goto(f"{house.origin}/ui/sessions/long?view=raw#e{seq}")
        expect(page.locator(".raw-event.marked")).to_contain_text(str(seq))
        expect(page.locator(".raw-event.marked")).to_be_in_viewport()


def test_what_is_new_and_out_of_view_is_said_by_a_pill_that_leads_there(house: Dashboard) -> None:
    for number in range(9):
        house.begin(f"first{number}", "say done")
        house.until(lambda number=number: not house.get(f"/v1/sessions/first{number}")["busy"])  # type: ignore[misc]
    with house.visitor() as page:
        page.set_viewport_size({"width": 1440, "height": 420})
        page.goto(f"{house.origin}/ui/inbox?show=ready&q=first")
        expect(page.locator(".row")).to_have_count(9)
        page.keyboard.press("k")  # the last
        chosen = page.locator(".row.chosen", has_text="first0")
        expect(chosen).to_be_in_viewport()
        expect(chosen).to_contain_text("looked at")
        at = chosen.bounding_box()
        house.begin("firsthand", "say done")  # the newest, above all others
        pill = page.get_by_role("button", name="1 new")
        expect(pill).to_be_visible()
        shot(page, "inbox-new")
        assert chosen.bounding_box() == at
        pill.click()
        fresh = page.locator(".row.ready", has_text="firsthand")
        expect(fresh).to_be_in_viewport()
        expect(pill).to_have_count(0)
        expect(page.locator(".row.chosen")).to_contain_text("first0")  # it moves by a hand alone

        # Under a pointer that moves nothing moves, and the pill says that there is more.
        place = page.locator(".rows").bounding_box()
        assert place is not None
        page.mouse.move(place["x"] + 20, place["y"] + 60)
        house.begin("first-under", "say done")
        for step in range(10_000):
            page.mouse.move(place["x"] + 20 + step % 40, place["y"] + 60)
            if pill.count():
                break
        assert page.locator(".row", has_text="first-under").count() == 0
        pill.click()
        expect(page.locator(".row", has_text="first-under")).to_be_in_viewport()


def test_a_list_that_comes_back_into_view_has_shown_what_is_new(house: Dashboard) -> None:
    house.begin("pocket", "ask run ls pocket")
    house.pending("pocket")
    with house.visitor(phone=True) as page:
        page.goto(f"{house.origin}/ui/inbox?q=pocket")
        page.locator(".row").click()
        expect(page.locator(".list")).not_to_be_visible()
        house.begin("pocketbook", "ask run ls pocketbook")
        expect(page.locator(".row", has_text="pocketbook")).to_have_count(1)
        page.go_back()
        expect(page.locator(".row", has_text="pocketbook")).to_be_in_viewport()
        expect(page.locator(".pill-button")).to_have_count(0)
    for session in ("pocket", "pocketbook"):
        house.post(f"/approvals/{house.pending(session)}/deny")


def test_what_was_loaded_behind_the_first_page_stays_when_something_changes(house: Dashboard) -> None:
    for number in range(5):
        house.begin(f"page{number}", "say done")
    with house.visitor() as page:
        page.route(
            "**/v1/sessions?limit=200*",
            lambda made: made.continue_(url=made.request.url.replace("limit=200", "limit=2")),
        )
        page.goto(f"{house.origin}/ui/sessions?q=page")
        rows = page.locator(".session-row")
        expect(rows).to_have_count(2)
        for count in (4, 5):
            page.get_by_role("button", name="Look further").click()
            expect(rows).to_have_count(count)
        house.begin("page5", "say done")
        expect(rows).to_have_count(6)
        expect(rows.first).to_contain_text("page5")
        expect(rows.last).to_contain_text("page0")
        # Another question is another list.
        page.get_by_label("Search titles").fill("page5")
        expect(rows).to_have_count(1)
        page.route("**/v1/sessions?limit=200*", lambda made: made.abort())
        page.get_by_label("Search titles").fill("page4")
        expect(page.get_by_role("alert")).to_contain_text("does not answer")


def test_a_run_that_loops_comes_into_the_open_inbox_by_itself(house: Dashboard) -> None:
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/inbox?show=wrong")
        expect(page.locator(".list")).to_be_visible()
        prompt = rehearse("title Rewrite the importer", *["read notes.txt"] * 8, "stall 600")
        run = house.post("/v1/runs", {"agent": "rehearsal", "prompt": prompt})["id"]
        row = page.locator(".row.wrong", has_text="Loops")
        expect(row).to_contain_text("again and again")
        shot(page, "inbox-loops")
        row.click()
        page.keyboard.press("o")
        page.wait_for_url(f"**/ui/runs/{run}")
        expect(page.locator("h1 .chip")).to_have_text("Looping")
        house.post(f"/v1/runs/{run}/cancel")
        expect(page.locator("h1 .chip")).to_have_text("Cancelled")


def test_a_failed_cleanup_is_among_what_goes_wrong(house: Dashboard) -> None:
    run = house.post("/v1/runs", {"agent": "rehearsal", "prompt": rehearse("say done")})["id"]
    house.until(lambda: house.get(f"/v1/runs/{run}")["endedAt"])
    # A worker tries for minutes before it gives up: this is what it writes then.
    with sqlite3.connect(next(house.server.home.rglob("legation.db"))) as database:
        database.execute("update run set cleanup = 'failed_terminal' where id = ?", (run,))
        database.execute("update inbox_item set section = 'wrong' where id = ?", (run,))
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/inbox?show=wrong")
        row = page.locator(".row.wrong", has_text="Cleanup failed")
        expect(row).to_contain_text("could not be removed")
        row.click()
        expect(page.get_by_role("heading", level=1).last).to_contain_text("Cleanup failed")
        page.keyboard.press("o")
        expect(page.locator("h1")).to_contain_text("Cleanup failed")


def test_sessions_are_searched_by_the_server_and_filters_stand_in_the_address(house: Dashboard) -> None:
    house.begin("needle", "say done", title="Mend the flaky upload")
    with house.visitor() as page:
        asked: list[str] = []
        page.on("request", lambda made: asked.append(made.url))
        page.goto(f"{house.origin}/ui/sessions")
        expect(page.locator(".session-row")).not_to_have_count(0)
        page.keyboard.press("/")
        page.keyboard.type("flaky mend")
        expect(page.locator(".session-row")).to_have_count(1)
        assert any("search=flaky%20mend" in url for url in asked)
        page.get_by_label("State").select_option("ended")
        expect(page.get_by_text("There is no such session.")).to_be_visible()
        assert "q=flaky+mend" in page.url
        assert "status=ended" in page.url
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".session-row")).not_to_have_count(0)


def test_a_supervisor_has_its_name_in_transcripts_of_sessions_and_runs(house: Dashboard) -> None:
    made = house.post("/v1/tokens", {"label": "rules", "kind": "supervisor"})
    judge = {"Authorization": f"Bearer {made['secret']}"}
    house.begin("judged", "ask write c.py x", "say over")
    run = house.post("/v1/runs", {"agent": "rehearsal", "prompt": rehearse("ask write c.py x", "say over")})[
        "id"
    ]
    for of, word in (("judged", "approve"), (run, "deny")):

        def asked(of: str = of) -> str | None:
            items = house.get("/v1/inbox")["items"]
            return next((each["id"] for each in items if (each["sessionId"] or "").startswith(of)), None)

        answer = house.api.post(f"/approvals/{house.until(asked)}/{word}", json={}, headers=judge)
        assert answer.status_code == 200, answer.text
    with house.visitor() as page:
        for place, word in (("sessions/judged", "approved"), (f"runs/{run}?view=transcript", "denied")):
            page.goto(f"{house.origin}/ui/{place}")
            expect(page.get_by_text("over", exact=True)).to_be_visible()
            expect(page.locator(".decision")).to_contain_text(f"{word} by supervisor:rules")
            expect(page.locator(".decision .level")).to_have_attribute("aria-label", "supervisor")
        # What the agent was told is told as it was; whose word it was has a name there, too.
        expect(page.locator(".denial b")).to_have_text("denied by supervisor:rules.")


def test_forms_and_decisions_fit_a_phone(house: Dashboard) -> None:
    house.begin("fits", "ask write a-rather-long-name-of-a-file.py x")
    house.until(lambda: house.get("/v1/sessions/fits")["pendingPermissions"])
    with house.visitor(phone=True) as page:
        page.goto(f"{house.origin}/ui/sessions/new")
        field = page.locator("textarea").first
        box = field.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
        page.goto(f"{house.origin}/ui/sessions/fits?view=decisions")
        box = page.locator(".decided td").first.bounding_box()
        assert box is not None
        assert box["width"] > 200


def test_prose_is_markdown_of_a_short_list_and_entities_are_letters(house: Dashboard) -> None:
    text = (
        "# Head & tail\\n\\n- [x] done\\n- [ ] todo\\n\\n1. one\\n2. two\\n\\n| a | b |\\n|---|--:|\\n| `1` | **2** |\\n\\n"
        "x &lt; y &amp;&amp; z &#x41; <i>raw</i>\\n\\n```js\\nlet x = 1 < 2;\\n```\\n\\n"
        + "> " * 200
        + "deep"
    )
    house.begin("prose", f"say {text}", "say after")
    with house.visitor() as page:
        page.goto(f"{house.origin}/ui/sessions/prose")
        prose = page.locator(".markdown").first
        expect(prose.locator("h1")).to_have_text("Head & tail")
        expect(prose.locator("li")).to_have_count(4)
        expect(prose.locator("input:checked")).to_have_count(1)
        expect(prose.locator("td strong")).to_have_text("2")
        expect(prose.locator("pre code")).to_have_text("let x = 1 < 2;")
        expect(prose).to_contain_text("x < y && z A <i>raw</i>")
        expect(prose).to_contain_text("deep")
        assert page.locator(".markdown i").count() == 0


ENDLESS = {
    "emphasis": "_a_" * 60_000,
    "quotes": "> " * 90_000,
    "cells": "|" + "a|" * 4_000 + "\\n|" + "-|" * 4_000 + "\\n" + "b\\n" * 20_000,
}


def test_prose_that_would_take_minutes_or_all_memory_to_read_is_text(house: Dashboard) -> None:
    for name, text in ENDLESS.items():
        house.begin(name, f"say {text}", "say after it")
        with house.visitor() as page:
            page.goto(f"{house.origin}/ui/sessions/{name}")
            expect(page.locator(".markdown", has_text="after it")).to_be_visible()
            expect(page.locator(".markdown.plain")).to_have_count(
                0
            )  # marked is here, and has read what it was given
            assert page.locator(".markdown td").count() == 0


def test_a_link_says_where_it_leads_unless_its_words_do(house: Dashboard) -> None:
    links = {
        "[docs.example/?to=evil.example](https://evil.example/a)": "evil.example",
        "[https://evil.example/b](https://evil.example/b)": None,
        "<https://docs.example@evil.example/c>": "evil.example",
        "[\u0430pple.example](https://\u0430pple.example/d)": "xn--pple-43d.example",
        "[ada@docs.example](mailto:mallory@evil.example)": "mallory@evil.example",
        "[as the page's own](https:ui/inbox)": "ui",
        "[one][two]\\n\\n[two]: https://evil.example/e": "evil.example",
    }
    none = (
        "[a](javascript&#58;window.hit=1)",
        "[a](JavaScript:window.hit=1)",
        "[a](vbscript:x)",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "[a](/ui/inbox)",
        "[a](http://)",
        "[a][b]\\n\\n[b]: javascript:window.hit=1",
        "<javascript:window.hit=1>",
    )
    house.begin(
        "links",
        *(step for each in (*links, *none) for step in (f"say {each}", "think of the next")),
        "say &#x202e;turned &#27;[31mred",
    )
    with house.visitor() as page:
        page.set_viewport_size({"width": 1440, "height": 4000})  # all rows are in view
        page.goto(f"{house.origin}/ui/sessions/links")
        expect(page.locator(".markdown", has_text="turned")).to_be_visible()
        prose = page.locator(".markdown")
        expect(prose).to_have_count(len(links) + len(none) + 1)
        for place, host in enumerate(links.values()):
            expect(prose.nth(place).locator("a")).to_have_count(1)
            assert prose.nth(place).locator(".chip").all_inner_texts() == ([] if host is None else [host])
        assert prose.nth(5).locator("a").get_attribute("href") == "https://ui/inbox"
        for place in range(len(links), len(links) + len(none)):
            expect(prose.nth(place).locator("a")).to_have_count(0)
        assert prose.last.inner_text() == "U+202Eturned red"
        assert page.evaluate("window.hit") is None
