"""The files of the dashboard: small, ours alone, without a secret or a provider's name, and as the lock gives them."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.toy_app import ask, toy_app

from legation.server.http.pages import read_files
from legation.server.routes import dashboard

FOLDER = dashboard.FOLDER
ROOT = Path(__file__).parents[2]
MOST_BYTES = 150_000
OURS = sorted(each for each in FOLDER.rglob("*.*") if "vendor" not in each.parts)


def test_all_that_a_browser_loads_is_at_most_150_kb_gzipped() -> None:
    sizes = {
        name: len(gzip.compress(file.data, mtime=0))
        for name, file in read_files(FOLDER).items()
        if not name.startswith(("README", "vendor/LICENSES"))  # pages for people: no browser loads them
    }
    assert sum(sizes.values()) <= MOST_BYTES, sizes


def test_no_file_of_ours_holds_inline_code_or_an_address() -> None:
    assert len(OURS) > 20
    for path in OURS:
        text = path.read_text()
        if path.suffix in (".js", ".css", ".html"):
            found = re.search(r"https?://(?!www\.w3\.org)[a-z]", text)
            assert found is None, (path.name, found)
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|new Function|dangerously", text
            ), path
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", text)


def test_no_file_names_a_credential_or_a_provider() -> None:
    secret = re.compile(
        r"(ANTHROPIC|OPENAI|AWS|GITHUB|GOOGLE)_[A-Z_]*(KEY|TOKEN|SECRET)|sk-(ant|proj)-|lgn_[A-Za-z0-9]|"
        r"api\.(anthropic|openai)|amazonaws|googleapis|BEGIN [A-Z ]*PRIVATE KEY"
    )
    for path in FOLDER.rglob("*.*"):
        assert not secret.search(path.read_text()), path.name


async def test_every_address_of_the_page_is_the_page_with_files_relative_to_it() -> None:
    app = toy_app([dashboard.routes])
    for path, root in {
        "/ui/inbox": "../",
        "/ui/sessions?q=x": "../",
        "/ui/inbox/apr_1": "../../",
        "/ui/inbox/ses_1/q/qst_1": "../../../../",
    }.items():
        got = await ask(app, "GET", path)
        assert got.status == 200, path
        assert f'src="{root}ui/assets/app.js"'.encode() in got.body
        policy = got.header("content-security-policy") or ""
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
    for path, there in {"/": "ui/inbox", "/ui": "ui/inbox", "/ui/": "inbox"}.items():
        got = await ask(app, "GET", path)
        assert (got.status, got.header("location")) == (303, there)


async def test_every_file_is_served_with_its_type_and_gzipped_to_who_takes_it() -> None:
    app = toy_app([dashboard.routes])
    for name, file in read_files(FOLDER).items():
        got = await ask(app, "GET", f"/ui/assets/{name}")
        assert (got.status, got.body, got.header("content-type")) == (200, file.data, file.media)
    for wrong in (
        "/ui/assets/..%2Fsettings.py",
        "/ui/assets/vendor/..%2F..%2Fsettings.py",
        "/ui/assets/none.js",
    ):
        assert (await ask(app, "GET", wrong)).status == 404


def test_every_import_of_a_module_is_there() -> None:
    for path in OURS:
        if path.suffix != ".js":
            continue
        for named in re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', path.read_text()):
            assert (path.parent / named).resolve().is_file(), (path.name, named)


def test_the_libraries_are_those_of_the_lock_and_their_licences_are_there() -> None:
    lock = json.loads((ROOT / "tools/vendor/package-lock.json").read_text())["packages"]
    heads = " ".join(
        each.read_text().partition("\n")[0] for each in (FOLDER / "vendor").iterdir() if each.suffix == ".js"
    )
    licences = (FOLDER / "vendor/LICENSES.txt").read_text()
    for name in json.loads((ROOT / "tools/vendor/package.json").read_text())["dependencies"]:
        known = f"{name} {lock[f'node_modules/{name}']['version']}"
        assert known in heads
        assert known in licences


@pytest.mark.network
def test_the_script_that_renews_them_gives_what_is_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.vendor", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
