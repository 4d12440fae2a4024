import pytest
from tests.real_agents import is_no_network


@pytest.mark.parametrize(
    ("said", "network"),
    [
        ("npm error code ENOTFOUND\nnpm error network request failed", True),
        ("npm error code ECONNREFUSED", True),
        ("npm error code EINTEGRITY\nnpm error sha512-… integrity checksum failed", False),
        ("npm error code EUSAGE\nnpm error the lock file and package.json are not in sync", False),
        ("", False),
    ],
)
def test_only_a_missing_network_counts_as_one(said: str, network: bool) -> None:
    assert is_no_network(said) is network
