"""Files sealed with a passphrase."""

import io
import os
from pathlib import Path

import pytest

from legation.errors import InvalidParams
from legation.secret import Secret
from legation.store.secrets import passphrase
from legation.store.secrets.passphrase import CHUNK, Seal, Unsealing, is_sealed, read_passphrase

PHRASE = Secret("correct horse battery staple", "passphrase")
HEADER = 42
SEALED = CHUNK + 16


@pytest.fixture(autouse=True)
def light_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a guess costs is not the subject here."""
    monkeypatch.setattr(passphrase, "_WORK", (4, 8, 1))


def sealed(data: bytes, piece: int = 10_000, phrase: Secret = PHRASE) -> bytes:
    seal = Seal(phrase)
    pieces = [seal.update(data[start : start + piece]) for start in range(0, len(data), piece)]
    return b"".join([*pieces, seal.finish()])


def opened(file: bytes, phrase: Secret = PHRASE) -> bytes:
    return Unsealing(io.BytesIO(file), phrase, "it").read()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5])
def test_what_was_sealed_is_opened(size: int) -> None:
    data = os.urandom(size)
    for piece in (1 + size // 3, 10 * CHUNK):
        file = sealed(data, piece)
        assert is_sealed(file)
        assert opened(file) == data
        assert len(data) < 50 or data[:50] not in file  # a byte or two stand in any file


def test_two_of_the_same_have_nothing_in_common() -> None:
    one, other = sealed(bytes(CHUNK)), sealed(bytes(CHUNK))
    assert one[-CHUNK:] != other[-CHUNK:]


def test_another_passphrase_opens_nothing() -> None:
    with pytest.raises(InvalidParams, match="passphrase is not the one"):
        opened(sealed(b"x" * 5), Secret("correct horse battery stable", "passphrase"))


def chunks(file: bytes) -> tuple[bytes, list[bytes]]:
    return file[:HEADER], [file[start : start + SEALED] for start in range(HEADER, len(file), SEALED)]


def damages() -> dict[str, bytes]:
    file = sealed(os.urandom(3 * CHUNK + 100))
    header, (a, b, c, d) = chunks(file)
    other_header, other = chunks(sealed(os.urandom(3 * CHUNK + 100)))
    flipped = {
        f"bit of byte {at}": at for at in (15, 16, 20, 40, HEADER + 3, HEADER + SEALED + 9, len(file) - 1)
    }
    return {
        "without its end": header + a + b + c,
        "cut within a chunk": file[:-10],
        "cut to its header": header,
        "cut within its header": header[:20],
        "nothing": b"",
        "in another order": header + b + a + c + d,
        "one doubled": header + a + a + b + c + d,
        "one left out": header + a + c + d,
        "another's chunk": header + a + other[1] + c + d,
        "another's header": other_header + a + b + c + d,
        "something after its end": file + b"x",
        "its last chunk again": file + d,
        **{name: file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :] for name, at in flipped.items()},
    }


def test_whatever_was_done_to_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passphrase, "_MOST_WORK", 4)
    noticed = []
    for name, file in damages().items():
        try:
            opened(file)
        except InvalidParams:
            noticed.append(name)
    assert noticed == list(damages())


def test_nothing_of_a_chunk_comes_out_before_it_is_known_to_be_genuine() -> None:
    data = os.urandom(2 * CHUNK)
    file = bytearray(sealed(data))
    file[-1] ^= 1
    reading = Unsealing(io.BytesIO(bytes(file)), PHRASE, "it")
    assert reading.read(2 * CHUNK) == data[:CHUNK]
    with pytest.raises(InvalidParams, match="damaged or cut off"):
        reading.read(1)


@pytest.mark.parametrize("work", [63, 31, 3, 0])
def test_a_header_cannot_order_endless_work(work: int) -> None:
    file = bytearray(sealed(b"x"))
    file[16] = work
    with pytest.raises(InvalidParams, match="newer Legation"):
        opened(bytes(file))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "one line"),
        ("short\n", "one line"),
        ("one line of text\nand another", "one line"),
        ("x" * 5000, "one"),
    ],
)
def test_what_is_no_passphrase_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "p"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidParams, match=told):
        read_passphrase(path)


def test_a_passphrase_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("one line of text\n")
    path.chmod(0o640)
    with pytest.raises(InvalidParams, match="chmod 600"):
        read_passphrase(path)
    path.chmod(0o600)
    assert read_passphrase(path).reveal() == "one line of text"
    with pytest.raises(InvalidParams, match="No such file"):
        read_passphrase(tmp_path / "none")
