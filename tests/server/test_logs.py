"""The log of the server: JSON lines with ids, without secrets, never in the way."""

import io
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from legation.redact import Redactor
from legation.secret import Secret
from legation.server.logs import QUEUE_LINES, logging_to, secrets_of
from legation.settings import load

TOKEN = "lgn_Canary0123456789Canary"
logger = logging.getLogger("legation.test")


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_is_one_json_object_with_the_ids() -> None:
    out = io.StringIO()
    with logging_to(out, "info", Redactor()):
        logger.info("two\nlines", extra={"request_id": "req_1", "workspace": "local", "other": "left out"})
        logger.debug("too fine")
    (line,) = lines(out.getvalue())
    assert line.pop("at")
    assert line == {
        "level": "info",
        "logger": "legation.test",
        "message": "two\nlines",
        "request_id": "req_1",
        "workspace": "local",
    }


def test_secrets_are_hidden_in_messages_ids_and_tracebacks() -> None:
    out = io.StringIO()
    with logging_to(out, "info", Redactor([Secret("canary-password", "db")])):
        logger.info("url postgresql://u:canary-password@db", extra={"principal": "canary-password"})
        try:
            raise RuntimeError(f"bearer {TOKEN} and canary-password")
        except RuntimeError:
            logger.exception("failed")
    text = out.getvalue()
    assert "canary-password" not in text
    assert TOKEN not in text
    assert "[redacted:db]" in text
    assert "[redacted:token]" in text
    assert "RuntimeError" in str(lines(text)[1]["traceback"])


def test_the_secrets_of_the_settings_are_known_to_it() -> None:
    env = {
        "HOME": "/home/ada",
        "LEGATION_DATABASE_URL": "postgresql://u:p%40ss-canary@db/x",
        "LEGATION_TOKEN": "token-canary-1",
        "LEGATION_VAULT_KEY": "vault-canary",
    }
    revealed = {secret.reveal() for secret in secrets_of(load({}, env))}
    assert revealed == {"p@ss-canary", "token-canary-1", "vault-canary"}


def test_a_file_is_private_and_kept_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legation.server.logs.FILE_BYTES", 2000)
    path = tmp_path / "logs/server.jsonl"
    with logging_to(path, "info", Redactor()):
        for number in range(200):
            logger.info("line %d", number)
    parts = sorted(path.parent.iterdir())
    assert 1 < len(parts) <= 6
    assert all(part.stat().st_size <= 2100 for part in parts)
    assert {part.stat().st_mode & 0o777 for part in parts} == {0o600}
    assert "line 199" in path.read_text()


def test_its_handler_has_a_lock_to_enter() -> None:
    others = list(logging.getLogger().handlers)
    with logging_to(io.StringIO(), "info", Redactor()):
        (handler,) = [each for each in logging.getLogger().handlers if each not in others]
        lock = handler.lock
        assert lock is not None  # from Python 3.13 on every line enters it, or raises where it is logged
        with lock:
            assert handler.handle(logging.makeLogRecord({"msg": "one thread may do so twice"}))


def test_lines_reach_a_descriptor_which_has_no_lock() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader:
        try:
            with logging_to(writing, "info", Redactor()):
                logger.info("one")
                logger.info("two")
        finally:
            os.close(writing)
        assert [line["message"] for line in lines(reader.read())] == ["one", "two"]


@pytest.mark.heavy
def test_a_reader_that_stalls_does_not_hold_up_the_server() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "r") as reader, os.fdopen(writing, "w") as out:
        with logging_to(out, "info", Redactor()):
            for number in range(QUEUE_LINES + 5000):  # far more than the pipe and the queue hold
                logger.info("line %d", number)
            drained = threading.Thread(target=reader.read)
            drained.start()
            logger.info("over")
        out.close()
        drained.join(20)
        assert not drained.is_alive()


def test_a_reader_that_went_away_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    out = os.fdopen(writing, "w")
    with logging_to(out, "info", Redactor()):
        logger.info("nobody hears it")
    with pytest.raises(BrokenPipeError):
        out.close()
    assert capsys.readouterr().err == ""
