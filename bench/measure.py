"""What a candidate's process does: time one thing, and print one sample as JSON on its last line."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

RATE = "events/s"
CPU = "CPU µs/event"

Sample = dict[str, float]  # the metric, named as it is shown, and its value


@dataclass(frozen=True, slots=True)
class Spent:
    wall: float
    cpu: float  # of this process, all its threads, user and system

    def per_event(self, events: int) -> Sample:
        return {RATE: events / self.wall, CPU: self.cpu / events * 1e6}

    def per_megabyte(self, size: int) -> Sample:
        return {"MB/s": size / 1e6 / self.wall, "CPU ms/MB": self.cpu / size * 1e9}


class Stopwatch:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> Spent:
        return Spent(time.perf_counter() - self._wall, time.process_time() - self._cpu)


def emit(sample: Sample) -> None:
    print(json.dumps(sample), flush=True)
