import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legation.errors import ConfigInvalid, StorageFailed
from legation.secret import Secret
from legation.store.secrets.sealer import (
    BadKey,
    Keys,
    drop_older_keys,
    encode,
    key_bytes,
    load_keys,
    make_key,
    new_key_text,
    open_key_file,
    read_key,
    rotate_key_file,
)

ROOT = Path(__file__).parents[2]
NOTHING: dict[str, Secret | None] = {}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.json"


def texts(path: Path) -> list[str]:
    file = json.loads(path.read_text())
    return [*file["vault"], file["pepper"], file["cookie"]]


def test_the_first_start_makes_keys_and_the_second_finds_them(path: Path) -> None:
    first = load_keys(path, NOTHING)
    assert load_keys(path, NOTHING) == first
    made = {first.vault.current.secret, first.pepper, first.cookie, first.links}
    assert len(made) == 4
    assert {len(key_bytes(secret)) for secret in made} == {32}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]


def test_the_file_is_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        load_keys(path, NOTHING)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666])
def test_a_file_that_others_can_use_is_refused(path: Path, mode: int) -> None:
    load_keys(path, NOTHING)
    path.chmod(mode)
    with pytest.raises(ConfigInvalid, match="chmod 600") as caught:
        load_keys(path, NOTHING)
    assert not [text for text in texts(path) if text in caught.value.message]


def test_a_link_is_refused(path: Path) -> None:
    load_keys(path, NOTHING)
    real = path.rename(path.with_name("elsewhere.json"))
    path.symlink_to(real)
    for act in (lambda: load_keys(path, NOTHING), lambda: rotate_key_file(path)):
        with pytest.raises(ConfigInvalid, match="it is a link"):
            act()
    path.unlink()
    path.symlink_to(path.with_name("absent"))  # and one that leads nowhere is not written through
    with pytest.raises(ConfigInvalid, match="it is a link"):
        load_keys(path, NOTHING)
    assert not path.with_name("absent").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused(path: Path, kind: str) -> None:
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path, 0o600)
    with pytest.raises(ConfigInvalid, match="it is not a file"):
        load_keys(path, NOTHING)


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: only root can give a file away")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    load_keys(path, NOTHING)
    os.chown(path, 65534, -1)
    with pytest.raises(ConfigInvalid, match="belongs to user 65534"):
        load_keys(path, NOTHING)


KEY = new_key_text()
GOOD = {"version": 1, "vault": [KEY], "pepper": new_key_text(), "cookie": new_key_text()}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not a file of keys"),
        ("not json", "not a file of keys"),
        ("[]", "not a file of keys"),
        (json.dumps({**GOOD, "vault": "x"}), "not a file of keys"),
        (json.dumps({**GOOD, "more": "x"}), "not a file of keys"),
        (json.dumps({**GOOD, "version": 2}), "its version is 2"),
        (json.dumps({**GOOD, "vault": []}), "vault is empty"),
        (json.dumps({**GOOD, "vault": [KEY[:-1]]}), "vault is not 32 bytes"),
        (json.dumps({**GOOD, "vault": [KEY, KEY]}), "vault holds the same key twice"),
        (json.dumps({**GOOD, "pepper": "A" * 43}), "pepper is not random"),
        (json.dumps({**GOOD, "cookie": KEY + "AAAA"}), "cookie is not 32 bytes"),
        (" " * 70_000, "too long"),
    ],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(path: Path, content: str, told: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    path.chmod(0o600)
    for act in (
        lambda: load_keys(path, NOTHING),
        lambda: rotate_key_file(path),
        lambda: drop_older_keys(path),
    ):
        with pytest.raises(ConfigInvalid, match=told) as caught:
            act()
        assert KEY[:12] not in caught.value.message
    assert path.read_text() == content


def test_settings_stand_before_the_file(path: Path) -> None:
    kept = load_keys(path, NOTHING)
    text = new_key_text()
    mixed = load_keys(path, {"token_pepper": Secret(text), "vault_key": None})
    assert mixed.pepper.reveal() == text
    assert (mixed.vault, mixed.cookie, mixed.links) == (kept.vault, kept.cookie, kept.links)
    assert load_keys(path, {"cookie_key": Secret(text)}).links != kept.links


def test_with_all_given_there_is_no_file(path: Path) -> None:
    older, current = new_key_text(), new_key_text()
    given = {
        "vault_key": Secret(f"{current}, {older}"),
        "token_pepper": Secret(new_key_text()),
        "cookie_key": Secret(new_key_text()),
    }
    keys = load_keys(path, given, require_given=True)
    assert keys.vault.current.secret.reveal() == current
    assert [key.secret.reveal() for key in keys.vault.older] == [older]
    assert keys.vault.find(make_key(Secret(older)).id) == keys.vault.older[0]
    assert keys.vault.find("00000000") is None
    assert load_keys(path, given) == keys
    assert not path.parent.exists()


def test_all_that_is_missing_or_wrong_is_told_at_once(path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_keys(path, {"vault_key": Secret("too-short"), "cookie_key": None}, require_given=True)
    for name in ("VAULT_KEY is not 32 bytes", "TOKEN_PEPPER is not set", "COOKIE_KEY is not set"):
        assert f"LEGATION_{name}" in caught.value.message
    assert "legation keys new" in caught.value.message
    assert "too-short" not in f"{caught.value.message}{caught.value.data}"
    assert not path.parent.exists()


def test_a_wrong_setting_is_told_before_a_file_is_made(path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="LEGATION_VAULT_KEY holds the same key twice"):
        load_keys(path, {"vault_key": Secret(f"{KEY},{KEY}=")})
    assert not path.exists()


@given(st.binary(min_size=32, max_size=32).filter(lambda raw: len(set(raw)) >= 8))
def test_every_spelling_of_base64_is_the_same_key(raw: bytes) -> None:
    spellings = [base64.b64encode(raw), base64.urlsafe_b64encode(raw)]
    spellings += [spelling.rstrip(b"=") for spelling in spellings]
    assert {read_key(f" {text.decode()}\n", "k").reveal() for text in spellings} == {encode(raw)}
    assert key_bytes(read_key(encode(raw), "k")) == raw


@given(st.text(max_size=60))
def test_no_other_text_is_a_key(text: str) -> None:
    with pytest.raises(BadKey):
        read_key(text, "k")


def test_a_typing_error_in_the_last_character_is_noticed() -> None:
    text = encode(bytes(range(32)))
    assert text[-1] == "8"
    with pytest.raises(BadKey):
        read_key(text[:-1] + "9", "k")  # the same 32 bytes, but for two idle bits


def test_the_id_of_a_key_never_changes() -> None:
    """It stands in every sealed row."""
    assert make_key(Secret(encode(bytes(range(32))))).id == "0e438554"


def test_rotation_keeps_the_older_keys_until_they_are_dropped(path: Path) -> None:
    first = open_key_file(path)
    second = rotate_key_file(path)
    third = rotate_key_file(path)
    keys = open_key_file(path)
    assert keys.vault.current == third
    assert keys.vault.older == (second, first.vault.current)
    assert (keys.pepper, keys.cookie) == (first.pepper, first.cookie)
    assert drop_older_keys(path) == (second.id, first.vault.current.id)
    assert drop_older_keys(path) == ()
    assert open_key_file(path).vault == type(keys.vault)(third)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_there_is_nothing_to_rotate_without_a_file(path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="does not exist"):
        rotate_key_file(path)


def test_what_a_crash_left_does_not_hinder(path: Path) -> None:
    path.parent.mkdir()
    path.with_name("keys.json.new").write_text("half a fi")
    keys = load_keys(path, NOTHING)
    assert rotate_key_file(path) != keys.vault.current
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ConfigInvalid, match="Not a directory"):
        load_keys(tmp_path / "data" / "keys.json", NOTHING)


def test_a_folder_that_takes_no_file_is_told() -> None:
    with pytest.raises(StorageFailed, match=r"cannot write .*check the folder"):
        load_keys(Path("/proc/legation/keys.json"), NOTHING)


def test_keys_do_not_show_themselves(path: Path) -> None:
    keys: Keys = load_keys(path, NOTHING)
    for text in texts(path):
        assert text not in repr(keys)


CHILD = """
import sys
from pathlib import Path
from legation.store.secrets.sealer import load_keys
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
keys = load_keys(Path(sys.argv[1]), {})
print(keys.vault.current.id, keys.links.reveal())
"""


@pytest.mark.heavy
def test_processes_that_start_together_get_the_same_keys(tmp_path: Path) -> None:
    for attempt in range(5):
        path = tmp_path / str(attempt) / "keys.json"
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")},
                text=True,
            )
            for _ in range(4)
        ]
        for child in children:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin
            child.stdin.write("\n")
            child.stdin.flush()
        answers = {child.communicate(timeout=30)[0] for child in children}
        assert [child.returncode for child in children] == [0] * 4
        assert len(answers) == 1
        assert answers == {f"{open_key_file(path).vault.current.id} {open_key_file(path).links.reveal()}\n"}
        assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]
