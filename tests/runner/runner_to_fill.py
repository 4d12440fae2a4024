"""A runner on a disk that is full after some kilobytes: `runner_to_fill.py CONFIG FOLDER BYTES`, with short times.

No file of it can become longer than that, which is what a full disk looks like to whoever appends to one."""

import asyncio
import os
import resource
import sys
from pathlib import Path

from legation.runner.config import choose_agent, read_config, read_config_file
from legation.runner.reporter import ReportTimes
from legation.runner.runner import RunnerTimes, run

config = read_config(read_config_file(Path(sys.argv[1])))
folder, most = Path(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
times = RunnerTimes(ReportTimes(window=0.05), spool_grace=0.5, stop_grace=1.0)
sys.exit(asyncio.run(run(config, choose_agent(config, os.environ, folder), folder, times=times)))
