import asyncio
import copy
import dataclasses
import io
import json
import logging
import pickle
import traceback
from unittest.mock import Mock

import msgspec
import pytest

from legation.errors import InvalidParams
from legation.secret import Secret

CANARY = "canary-7f3a91c2"


@dataclasses.dataclass
class Holder:
    key: Secret
    port: int = 1


@pytest.fixture
def secret() -> Secret:
    return Secret(CANARY, "api_key")


def test_only_reveal_gives_the_value(secret: Secret) -> None:
    assert secret.reveal() == CANARY
    assert secret.name == "api_key"


def test_text_shows_the_name_and_not_the_value(secret: Secret) -> None:
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{secret:>40}", f"{[secret]}"]
    percent = "%s %r" % (secret, secret)  # noqa: UP031
    by_method = "{} {!r}".format(secret, secret)  # noqa: UP032
    for text in [*shown, percent, by_method, format(secret, "^30"), repr(Holder(secret))]:
        assert "api_key" in text
        assert CANARY not in text


def test_json_refuses_it_without_the_value(secret: Secret) -> None:
    with pytest.raises(TypeError) as refused:
        json.dumps({"key": secret})
    assert CANARY not in str(refused.value)
    assert CANARY not in json.dumps({"key": secret}, default=str)
    assert CANARY not in json.dumps({"key": secret}, default=repr)


def test_msgspec_refuses_it_without_the_value(secret: Secret) -> None:
    for encode in (msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins):
        with pytest.raises(TypeError) as refused:
            encode({"key": secret})
        assert CANARY not in str(refused.value)
    assert CANARY.encode() not in msgspec.json.encode([secret], enc_hook=str)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_is_refused_without_the_value(secret: Secret, protocol: int) -> None:
    with pytest.raises(TypeError, match="cannot pickle <secret api_key>") as refused:
        pickle.dumps([secret], protocol)
    assert CANARY not in _everything_about(refused.value)


def test_a_copy_is_the_same_object(secret: Secret) -> None:
    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret


def test_walking_its_attributes_finds_nothing(secret: Secret) -> None:
    with pytest.raises(TypeError):
        vars(secret)
    assert CANARY not in repr(dataclasses.asdict(Holder(secret)))
    assert CANARY not in repr(dataclasses.astuple(Holder(secret)))
    assert CANARY not in repr(
        [getattr(secret, name) for name in dir(secret) if not callable(getattr(secret, name))]
    )
    assert CANARY not in repr(secret.__getstate__())


def test_a_traceback_with_locals_does_not_show_it(secret: Secret) -> None:
    def fails(key: Secret) -> None:
        box = {"key": key, "holder": Holder(key)}
        raise RuntimeError(f"cannot use {key} of {sorted(box)}")

    with pytest.raises(RuntimeError) as failed:
        fails(secret)
    text = _everything_about(failed.value)
    assert "<secret api_key>" in text
    assert CANARY not in text


def test_logging_does_not_show_it(secret: Secret) -> None:
    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(stream))
    logger.warning("key %s, %r", secret, secret)
    logger.warning(secret)
    try:
        raise RuntimeError(secret)
    except RuntimeError:
        logger.exception("failed with %s", {"key": secret})
    assert stream.getvalue().count("<secret api_key>") == 5
    assert CANARY not in stream.getvalue()


def test_printing_and_joining_do_not_show_it(secret: Secret, capsys: pytest.CaptureFixture[str]) -> None:
    print(secret, [secret])  # noqa: T201
    assert capsys.readouterr().out == "<secret api_key> [<secret api_key>]\n"
    with pytest.raises(TypeError) as refused:
        "".join([secret])  # type: ignore[list-item]
    assert CANARY not in str(refused.value)


def test_secrets_are_equal_by_value_alone() -> None:
    assert Secret(CANARY, "one") == Secret(CANARY, "two")
    assert len({Secret(CANARY, "one"), Secret(CANARY, "two")}) == 1
    assert Secret(CANARY) != Secret(CANARY + "x")
    assert Secret("schlüssel") == Secret("schlüssel")
    assert Secret(CANARY) != CANARY


def test_comparing_takes_the_constant_time_function(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = Mock(return_value=False)
    monkeypatch.setattr("hmac.compare_digest", compare)
    assert Secret(CANARY) != Secret(CANARY)
    compare.assert_called_once_with(CANARY.encode(), CANARY.encode())


@pytest.mark.parametrize(
    ("value", "name"),
    [("", "api_key"), (CANARY + "\ud800", "api_key"), (CANARY, ""), (CANARY, 'a"b'), (CANARY, "a\n")],
)
def test_a_bad_secret_is_refused_without_showing_it(value: str, name: str) -> None:
    with pytest.raises(InvalidParams, match=r"^cannot ") as refused:
        Secret(value, name)
    assert CANARY not in _everything_about(refused.value, frames_of="/secret.py")


def test_a_value_given_as_the_name_is_not_shown() -> None:
    with pytest.raises(InvalidParams) as refused:
        Secret("api_key", CANARY + "!")
    assert CANARY not in _everything_about(refused.value, frames_of="/secret.py")


def test_an_attribute_cannot_be_replaced(secret: Secret) -> None:
    with pytest.raises(AttributeError):
        secret.name = "other"  # type: ignore[misc]


async def test_a_failed_task_does_not_show_it(secret: Secret) -> None:
    async def fails(key: Secret) -> None:
        raise RuntimeError(key)

    (failure,) = await asyncio.gather(fails(secret), return_exceptions=True)
    assert failure is not None
    assert CANARY not in _everything_about(failure)


def _everything_about(error: BaseException, frames_of: str = "") -> str:
    """The traceback with all locals; only frames of one file where the test itself holds the value."""
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    kept = [frame for frame in report.stack if frame.filename.endswith(frames_of)]
    assert kept
    report.stack = traceback.StackSummary.from_list([])
    shown = [f"{frame.name} {frame.locals}" for frame in kept]
    return "\n".join([*report.format(), repr(error), *shown])
