import pickle
from pathlib import Path

import pytest

from legation import errors
from legation.errors import STATUS, Code, LegationError, NotFound, problem
from tools import pages

PAGE = Path(__file__).parents[1] / "docs/reference/errors.md"


def test_every_code_has_a_status_and_exactly_one_class() -> None:
    assert set(STATUS) == set(Code)
    assert set(errors.leaves()) == set(Code)
    assert len(_classes(LegationError)) == len(Code)


def test_codes_are_kebab_case_in_one_namespace() -> None:
    for code in Code:
        assert code == "legation/" + code.name.lower().replace("_", "-")


def test_exit_codes_keep_clear_of_success_and_of_the_shell() -> None:
    exits = {code: status.exit for code, status in STATUS.items()}
    assert exits.pop(Code.CANCELLED) == 130
    assert set(exits.values()) == set(range(1, 11))


def test_a_problem_is_a_client_or_a_server_error() -> None:
    assert all(400 <= status.http <= 599 and status.title for status in STATUS.values())


@pytest.mark.parametrize("kind", errors.leaves().values())
def test_an_error_carries_its_code_message_and_data(kind: type[LegationError]) -> None:
    error = kind("cannot do it: try again", {"id": "ses_1"})
    assert str(error) == error.message == "cannot do it: try again"
    assert error.data == {"id": "ses_1"}
    assert error.status == STATUS[error.code]


def test_a_problem_has_the_members_of_rfc_9457() -> None:
    assert problem(NotFound("cannot find session ses_1: list them", {"id": "ses_1"})) == {
        "type": "urn:legation:error:not-found",
        "title": "Not found",
        "status": 404,
        "detail": "cannot find session ses_1: list them",
        "code": "legation/not-found",
        "data": {"id": "ses_1"},
    }


def test_a_problem_without_data_leaves_the_member_out() -> None:
    assert "data" not in problem(NotFound("cannot find it: look elsewhere"))


def test_an_error_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(NotFound("cannot find it: look elsewhere", {"id": 1})))
    assert (type(copy), copy.message, copy.data) == (NotFound, "cannot find it: look elsewhere", {"id": 1})


def test_a_subclass_of_an_application_does_not_take_over_a_code() -> None:
    class Mine(NotFound):
        pass

    assert errors.leaves()[Mine.code] is NotFound


def test_the_drawing_in_the_module_shows_every_class() -> None:
    drawn = {line.split()[-1] for line in (errors.__doc__ or "").splitlines() if "── " in line}
    assert drawn == {kind.__name__ for kind in errors.leaves().values()}


def test_the_reference_page_is_current() -> None:
    assert PAGE.read_text() == pages.error_codes(), (
        "docs/reference/errors.md is out of date: run `./dev check --fix`"
    )
    assert all(f"`{code}`" in pages.error_codes() for code in Code)


def _classes(root: type[LegationError]) -> set[type[LegationError]]:
    below = {kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__}
    return below.union(*(_classes(kind) for kind in below))
