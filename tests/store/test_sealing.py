import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from legation.errors import ConfigInvalid, InvalidParams, LegationError, StorageFailed
from legation.secret import Secret
from legation.store.secrets.sealer import (
    Key,
    KeyRing,
    SealedValue,
    Sealer,
    WrappedKey,
    check_value,
    derive,
    key_bytes,
    make_key,
    matches,
    new_key_text,
)

BOUND = ("vault", "ws_a", "run_1", "1")
PLAIN = b"the canary in the bundle"


def fresh_key() -> Key:
    return make_key(Secret(new_key_text()))


@pytest.fixture
def sealer() -> Sealer:
    return Sealer(KeyRing(fresh_key()))


def test_what_was_sealed_opens(sealer: Sealer) -> None:
    for plain in (b"", PLAIN, bytes(1_000_000)):
        sealed = sealer.seal(plain, BOUND)
        assert sealer.open(sealed, BOUND) == plain
        assert len(sealed.body) == len(plain) + 28


def test_a_view_is_sealed_as_it_is(sealer: Sealer) -> None:
    assert sealer.open(sealer.seal(memoryview(PLAIN)[4:10], BOUND), BOUND) == PLAIN[4:10]


def test_two_seals_of_one_value_have_nothing_in_common(sealer: Sealer) -> None:
    first, second = sealer.seal(PLAIN, BOUND), sealer.seal(PLAIN, BOUND)
    assert first.wrapped_key[1:13] != second.wrapped_key[1:13]  # the nonces
    assert first.wrapped_key[13:] != second.wrapped_key[13:]
    assert first.body != second.body


def test_every_changed_byte_is_noticed(sealer: Sealer) -> None:
    sealed = sealer.seal(PLAIN, BOUND)
    for flipped in (1, 128):
        for other in (
            *(replace(sealed, wrapped_key=value) for value in _flipped(sealed.wrapped_key, flipped)),
            *(replace(sealed, body=value) for value in _flipped(sealed.body, flipped)),
        ):
            with pytest.raises(StorageFailed, match="cannot open a sealed value"):
                sealer.open(other, BOUND)


def _flipped(value: bytes, bit: int) -> list[bytes]:
    whole = range(len(value))
    return [bytes(byte ^ bit if place == at else byte for place, byte in enumerate(value)) for at in whole]


def test_every_cut_and_addition_is_noticed(sealer: Sealer) -> None:
    sealed = sealer.seal(PLAIN, BOUND)
    for length in range(len(sealed.body) + 2):
        if length != len(sealed.body):
            with pytest.raises(StorageFailed):
                sealer.open(replace(sealed, body=(sealed.body + b"\0")[:length]), BOUND)
    for length in range(len(sealed.wrapped_key) + 2):
        if length != len(sealed.wrapped_key):
            with pytest.raises(StorageFailed):
                sealer.open(replace(sealed, wrapped_key=(sealed.wrapped_key + b"\0")[:length]), BOUND)


def test_parts_of_two_seals_do_not_go_together(sealer: Sealer) -> None:
    one, other = sealer.seal(PLAIN, BOUND), sealer.seal(PLAIN, BOUND)
    with pytest.raises(StorageFailed):
        sealer.open(replace(one, body=other.body), BOUND)


@pytest.mark.parametrize("place", range(4))
def test_it_opens_for_nobody_else(sealer: Sealer, place: int) -> None:
    other = [*BOUND]
    other[place] += "x"
    with pytest.raises(StorageFailed):
        sealer.open(sealer.seal(PLAIN, BOUND), other)
    wrapped, _ = sealer.new_data_key(BOUND)
    with pytest.raises(StorageFailed):
        sealer.open_data_key(wrapped, other)


@given(
    st.lists(st.text(max_size=4), min_size=1, max_size=4),
    st.lists(st.text(max_size=4), min_size=1, max_size=4),
)
def test_bindings_are_never_taken_for_one_another(one: list[str], other: list[str]) -> None:
    """Also when their texts run together to the same."""
    sealer = Sealer(_RING)
    sealed = sealer.seal(PLAIN, one)
    if one == other:
        assert sealer.open(sealed, other) == PLAIN
    else:
        with pytest.raises(StorageFailed):
            sealer.open(sealed, other)
    joined = ["".join(one)]
    if joined != one:
        with pytest.raises(StorageFailed):
            sealer.open(sealed, joined)


_RING = KeyRing(fresh_key())


@pytest.mark.parametrize("bound", [(), "ws_a", ("ws", "\ud800")])
def test_what_belongs_to_nothing_is_not_sealed(sealer: Sealer, bound: tuple[str, ...]) -> None:
    with pytest.raises(InvalidParams):
        sealer.seal(PLAIN, bound)


def test_an_unknown_key_is_named_with_the_setting(sealer: Sealer) -> None:
    sealed = sealer.seal(PLAIN, BOUND)
    with pytest.raises(ConfigInvalid, match=f"{sealed.key_id}.*LEGATION_VAULT_KEY"):
        Sealer(KeyRing(fresh_key())).open(sealed, BOUND)


def test_a_key_under_a_false_id_opens_nothing(sealer: Sealer) -> None:
    sealed = sealer.seal(PLAIN, BOUND)
    false = Key(sealed.key_id, fresh_key().secret)
    with pytest.raises(StorageFailed):
        Sealer(KeyRing(false)).open(sealed, BOUND)


def test_errors_tell_nothing_of_what_is_inside(sealer: Sealer) -> None:
    sealed = sealer.seal(PLAIN, BOUND)
    for attempt in (sealed, replace(sealed, key_id="deadbeef"), replace(sealed, body=PLAIN * 3)):
        with pytest.raises(LegationError) as caught:
            sealer.open(attempt, ("vault", "ws_b"))
        assert "canary" not in f"{caught.value.message} {caught.value.data}"
        assert caught.value.__cause__ is None


def rewrapped(sealer: Sealer, sealed: SealedValue, bound: Sequence[str]) -> SealedValue:
    wrapped = sealer.rewrap_key(sealed, bound)
    return replace(sealed, key_id=wrapped.key_id, wrapped_key=wrapped.wrapped_key)


def test_rotation_rewraps_and_then_the_old_key_can_go() -> None:
    old, new = fresh_key(), fresh_key()
    sealed = Sealer(KeyRing(old)).seal(PLAIN, BOUND)
    both = Sealer(KeyRing(new, (old,)))
    assert both.open(sealed, BOUND) == PLAIN
    moved = rewrapped(both, sealed, BOUND)
    assert (moved.key_id, moved.body) == (new.id, sealed.body)  # INV-S3
    assert rewrapped(both, moved, BOUND) == moved
    assert Sealer(KeyRing(new)).open(moved, BOUND) == PLAIN
    with pytest.raises(ConfigInvalid):
        Sealer(KeyRing(new)).open(sealed, BOUND)
    with pytest.raises(StorageFailed):
        rewrapped(both, sealed, ("vault", "ws_b", "run_1", "1"))


def test_pages_of_one_run_share_a_data_key() -> None:
    old, new = fresh_key(), fresh_key()
    run = ("content", "ws_a", "run_1")
    wrapped, data_key = Sealer(KeyRing(old)).new_data_key(run)
    pages = {
        (*run, str(n), str(n + 9)): data_key.seal_page(b"page %d" % n, (*run, str(n), str(n + 9)))
        for n in (1, 11)
    }
    moved = Sealer(KeyRing(new, (old,))).rewrap_key(wrapped, run)
    opened = Sealer(KeyRing(new)).open_data_key(moved, run)
    for place, page in pages.items():
        assert opened.open_page(page, place) == b"page %s" % place[3].encode()
    first, second = pages
    with pytest.raises(StorageFailed):
        opened.open_page(pages[first], second)  # pages cannot change places


def test_a_page_is_no_bundle(sealer: Sealer) -> None:
    """The layers are bound too: what is one thing is never opened as another."""
    sealed = sealer.seal(PLAIN, BOUND)
    data_key = sealer.open_data_key(WrappedKey(sealed.key_id, sealed.wrapped_key), BOUND)
    with pytest.raises(StorageFailed):
        data_key.open_page(sealed.body, BOUND)


def test_every_key_and_nonce_is_drawn_anew() -> None:
    drawn: list[bytes] = []

    def random(size: int) -> bytes:
        drawn.append((len(drawn) + 1).to_bytes(size))
        return drawn[-1]

    sealer = Sealer(KeyRing(fresh_key()), random)
    sealed = sealer.seal(PLAIN, BOUND)
    wrapped, data_key = sealer.new_data_key(BOUND)
    pages = [data_key.seal_page(b"", BOUND) for _ in range(2)]
    assert sorted(len(chance) for chance in drawn) == [12] * 5 + [32] * 2
    nonces = {
        sealed.body[:12],
        sealed.wrapped_key[1:13],
        wrapped.wrapped_key[1:13],
        *(page[:12] for page in pages),
    }
    assert nonces == {chance for chance in drawn if len(chance) == 12}


def test_a_wrong_key_is_noticed_by_its_check_value() -> None:
    key = fresh_key()
    value = check_value(key)
    assert matches(key, value)
    assert not matches(fresh_key(), value)
    assert not matches(key, value[:-1])
    assert key_bytes(key.secret) not in value


def test_a_data_key_shows_nothing() -> None:
    secret = bytes(range(32))
    _, data_key = Sealer(KeyRing(fresh_key()), lambda size: secret[:size]).new_data_key(BOUND)
    assert str(secret) not in repr(data_key)
    assert not hasattr(data_key, "__dict__")


def test_derivation_is_the_standard_one() -> None:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    for length in (1, 32, 33, 100):
        standard = HKDF(SHA256(), length, salt=None, info=b"legation/links").derive(b"s" * 32)
        assert derive(b"s" * 32, "links", length) == standard
    assert derive(b"s" * 32, "a") != derive(b"s" * 32, "b")


def test_the_ciphers_are_imported_only_when_something_is_sealed() -> None:
    code = "import sys, legation.store.secrets.sealer; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={}, check=False).returncode == 0
