"""Made-up requests to every file route: the answers are those of the document, and nothing outside is touched."""

import pytest
from tests.server.fs.drive import Drive
from tests.server.fuzz import fuzz

# A tar is nothing that a fuzzer can make up; tests/server/fs/test_upload.py does.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]


def test_every_route_answers_as_its_document_says(drive: Drive) -> None:
    assert fuzz(drive.app, headers={"Authorization": "Bearer operator"}, skip=["uploadFiles"]) >= 8
