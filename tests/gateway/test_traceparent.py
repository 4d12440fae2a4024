import pytest

from legation.gateway.tools import trace_id_of, traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "header",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-00",
        f"cc-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-what-a-later-version-adds",
    ],
)
def test_the_trace_id_is_read(header: str) -> None:
    assert trace_id_of(header) == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_a_malformed_one_is_as_none(header: str | None) -> None:
    assert trace_id_of(header) is None


def test_what_we_send_can_be_read() -> None:
    assert trace_id_of(traceparent(TRACE)) == TRACE
    assert traceparent(TRACE) != traceparent(TRACE)  # a span of its own each
