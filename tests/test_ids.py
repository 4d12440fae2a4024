import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from legation.clock import new_id

MOMENT = 1_700_000_000_000
LIMIT = 60.0  # seconds for a program to start and end, on a busy machine
# One id, and then ten of each process.
FORKS = """
import os, sys
from legation.clock import new_id
new_id("ses", now_ms=int(sys.argv[1]))
child = os.fork()
print(*[new_id("ses", now_ms=int(sys.argv[2])) for _ in range(10)], flush=True)
if child:
    assert os.waitpid(child, 0) == (child, 0)
"""


def test_an_id_is_its_prefix_and_26_letters_of_crockford() -> None:
    assert re.fullmatch(r"ses_[0-7][0-9a-hjkmnp-tv-z]{25}", new_id("ses"))


def test_time_and_chance_decide_the_id() -> None:
    # The time part is a ULID's; the moment and its ten letters are the example every ULID library tests with.
    assert new_id("x", now_ms=1469918176385, random=bytes) == "x_01aryz6s41" + "0" * 16


def test_ids_sort_by_time() -> None:
    made = [new_id("ses", now_ms=MOMENT + step) for step in (0, 1, 2, 1000, 10**9)]
    assert made == sorted(made)


def test_ids_of_one_millisecond_sort_in_the_order_they_were_made() -> None:
    made = [new_id("ses", now_ms=MOMENT) for _ in range(1000)]
    assert made == sorted(set(made))


def test_the_highest_chance_still_leaves_room_within_its_millisecond() -> None:
    made = [new_id("ses", now_ms=MOMENT + 7, random=lambda count: b"\xff" * count) for _ in range(1000)]
    assert made == sorted(set(made))
    assert {item[:14] for item in made} == {made[0][:14]}


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_id("ses", now_ms=MOMENT), range(2000)))
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("later", [0, 1], ids=["in the same millisecond", "in the next one"])
def test_forked_processes_do_not_make_the_same_ids(later: int) -> None:
    # In a program of its own, which has no threads that a fork would leave behind.
    argv = [sys.executable, "-c", FORKS, str(MOMENT), str(MOMENT + later)]
    done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=LIMIT, check=True)
    made = done.stdout.split()
    assert len(made) == 20
    assert len(set(made)) == 20
