import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.s3_server import S3Server, needs_rclone, s3_server

from legation.errors import ConfigInvalid, Forbidden, InvalidParams
from legation.secret import Secret
from legation.store.blobs.base import LONGEST_LINK, LinkSigner, LinkTarget, disposition
from legation.store.blobs.s3 import S3Blobs
from legation.store.secrets.sealer import new_key_text
from legation.testing.clock import FakeClock

KEY = "ws_a/run_1/out=1.html"
NAME = 'Ünï "quoted"; report.html'


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def signer(clock: FakeClock) -> LinkSigner:
    return LinkSigner(Secret(new_key_text()), "https://legation.example/", clock)


def taken_apart(link: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}


def full_link(signer: LinkSigner) -> dict[str, str]:
    return taken_apart(signer.link(KEY, expires_in=60, filename=NAME, content_type="text/html"))


def refusal(signer: LinkSigner, query: str) -> object:
    with pytest.raises(Forbidden, match="cannot open this link") as caught:
        signer.verify(query)
    assert caught.value.data
    return caught.value.data["reason"]


def test_a_link_names_one_blob(signer: LinkSigner, clock: FakeClock) -> None:
    link = signer.link(KEY, expires_in=60, filename=NAME, content_type="text/html")
    assert link.startswith("https://legation.example/v1/blobs?key=")
    address = urlsplit(link)
    expires = clock.now_ms() // 1000 + 60
    assert signer.verify(address.query) == LinkTarget(KEY, expires, NAME, "text/html")


def test_a_link_needs_neither_name_nor_type(signer: LinkSigner) -> None:
    fields = taken_apart(signer.link(KEY, expires_in=1))
    assert fields.keys() == {"key", "expires", "signature"}
    target = signer.verify(urlencode(fields))
    assert (
        target.headers()["content-disposition"] == 'attachment; filename="out_1.html"; '
        "filename*=UTF-8''out%3D1.html"
    )
    assert target.headers()["content-type"] == "application/octet-stream"


def test_it_ends_at_its_time(signer: LinkSigner, clock: FakeClock) -> None:
    fields = full_link(signer)
    clock.advance(59)
    assert signer.verify(urlencode(fields)).key == KEY
    clock.advance(1)
    assert refusal(signer, urlencode(fields)) == "expired"


CHANGES = [
    {"expires": "99999999999"},
    {"expires": "-1"},
    {"expires": ""},
    {"expires": "١٢٣"},
    {"filename": "other.html"},
    {"filename": ""},
    {"type": "text/plain"},
    {"signature": ""},
    {"signature": "A" * 43},
    {"signature": "ä"},
    {"inline": "1"},
    {"key": "ws_b/run_1/out=1.html"},
    {"key": "ws_a/run_1/out=1.htm"},
    {"key": "ws_a/run_1/../run_1/out=1.html"},
    {"key": "/ws_a/run_1/out=1.html"},
    {"key": ""},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_changed_field_is_refused(signer: LinkSigner, change: dict[str, str]) -> None:
    fields = full_link(signer)
    assert refusal(signer, urlencode({**fields, **change})) == "altered"


@pytest.mark.parametrize("field", ["key", "expires", "filename", "type", "signature"])
def test_a_field_left_out_or_doubled_is_refused(signer: LinkSigner, field: str) -> None:
    fields = full_link(signer)
    query = urlencode(fields)
    assert refusal(signer, f"{query}&{urlencode({field: fields.pop(field)})}") == "altered"
    assert refusal(signer, urlencode(fields)) == "altered"


@pytest.mark.parametrize("field", ["filename", "type"])
def test_an_empty_field_is_not_an_absent_one(signer: LinkSigner, field: str) -> None:
    fields = taken_apart(signer.link(KEY, expires_in=60))
    assert refusal(signer, urlencode({**fields, field: ""})) == "altered"


def test_fields_cannot_lend_each_other_letters(signer: LinkSigner) -> None:
    fields = taken_apart(signer.link(KEY, expires_in=60, filename="ab"))
    expires = fields["expires"]
    for moved in ({"expires": expires[:-1], "filename": expires[-1] + "ab"}, {"filename": "a", "type": "b"}):
        assert refusal(signer, urlencode({**fields, **moved})) == "altered"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "&&&",
        "expires",
        "%ff=%ff",
        "a=1&" * 100,
        "\ud800",
        "expires=1&filename=\ud800",
        "expires=1&signature=\ud800",
    ],
)
def test_nonsense_is_refused(signer: LinkSigner, query: str) -> None:
    assert refusal(signer, query) == "altered"


@given(st.text())
def test_whatever_is_sent_is_refused(query: str) -> None:
    signer = LinkSigner(Secret(new_key_text()), "http://127.0.0.1:1", FakeClock())
    assert refusal(signer, query) == "altered"


def test_another_installation_does_not_take_it(signer: LinkSigner, clock: FakeClock) -> None:
    fields = full_link(signer)
    other = LinkSigner(Secret(new_key_text()), "https://legation.example", clock)
    assert refusal(other, urlencode(fields)) == "altered"


@pytest.mark.parametrize(
    "bad",
    [
        {"expires_in": 0},
        {"expires_in": -5},
        {"expires_in": LONGEST_LINK + 1},
        {"filename": ""},
        {"filename": "a/b"},
        {"filename": "a\\b"},
        {"filename": "a\r\nx-evil: 1"},
        {"filename": "txt\u202eexe"},
        {"filename": "\ud800"},
        {"filename": ".."},
        {"filename": "x" * 201},
        {"content_type": "text/html\r\nx: y"},
        {"content_type": "html"},
        {"key": "../etc/passwd"},
    ],
    ids=str,
)
def test_no_link_is_made_for_what_cannot_be_answered(signer: LinkSigner, bad: dict[str, object]) -> None:
    arguments = {"key": KEY, "expires_in": 60, **bad}
    with pytest.raises(InvalidParams, match="cannot"):
        signer.link(**arguments)  # type: ignore[arg-type]


def test_the_answer_is_always_a_download(signer: LinkSigner) -> None:
    fields = full_link(signer)
    headers = signer.verify(urlencode(fields)).headers()
    assert headers["content-disposition"].startswith("attachment;")
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert headers["content-type"] == "text/html"


@given(st.text(min_size=1))
def test_a_name_cannot_break_out_of_its_header(name: str) -> None:
    try:
        header = disposition(name)
    except UnicodeEncodeError:
        return  # half characters: refused before, by `check_link`
    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2


def test_an_address_that_no_browser_opens_is_refused(clock: FakeClock) -> None:
    with pytest.raises(ConfigInvalid):
        LinkSigner(Secret(new_key_text()), "legation.example", clock)


# In S3: its own presigned addresses, opened with nothing but the address.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> S3Blobs:
    return S3Blobs(server.url(), access_key=server.access_key, secret_key=server.secret_key)


def fetched(url: str) -> tuple[int, bytes, Message]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, b"", refused.headers


@needs_rclone
@pytest.mark.heavy
async def test_a_link_into_a_bucket_gives_the_blob_as_a_download(bucket: S3Blobs) -> None:
    await bucket.put(KEY, b"<html>", content_type="text/html")
    for name in (NAME, None):
        link = await bucket.link(KEY, expires_in=60, filename=name, content_type="text/plain")
        status, data, headers = fetched(link)
        assert (status, data) == (200, b"<html>")
        assert headers["content-type"] == "text/plain"
        assert headers["content-disposition"] == disposition(name or "out=1.html")


@needs_rclone
@pytest.mark.heavy
async def test_a_link_into_a_bucket_ends_at_its_time(bucket: S3Blobs) -> None:
    await bucket.put(KEY, b"x")
    link = await bucket.link(KEY, expires_in=3)
    deadline = time.monotonic() + 30
    statuses = [fetched(link)[0]]
    while statuses[-1] == 200 and time.monotonic() < deadline:
        time.sleep(0.1)  # the server's clock cannot be moved by hand
        statuses.append(fetched(link)[0])
    assert statuses[0] == 200
    assert statuses[-1] in {400, 403}


@needs_rclone
@pytest.mark.heavy
async def test_every_change_of_a_link_into_a_bucket_is_refused(bucket: S3Blobs) -> None:
    other = KEY.replace("run_1", "run_2")
    for key in (KEY, other):
        await bucket.put(key, b"x")
    link = await bucket.link(KEY, expires_in=60, filename=NAME, content_type="text/plain")
    address = urlsplit(link)
    fields = {name: values[0] for name, values in parse_qs(address.query).items()}
    assert fetched(f"{link.split('?')[0]}?{urlencode(fields)}")[0] == 200
    assert fetched(link.replace("run_1", "run_2"))[0] == 403
    assert fetched(link.split("?")[0])[0] in {400, 403}
    changes = {
        "X-Amz-Expires": "600",
        "X-Amz-Signature": "0" * 64,
        "X-Amz-Credential": fields["X-Amz-Credential"].replace("test", "tost"),
        "response-content-disposition": "inline",
        "response-content-type": "text/html",
    }
    for name, value in changes.items():
        assert fetched(f"{link.split('?')[0]}?{urlencode({**fields, name: value})}")[0] in {400, 403}, name
