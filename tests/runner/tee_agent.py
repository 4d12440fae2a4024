"""An agent behind a tee: `tee_agent.py FILE COMMAND...` runs it and writes all that it says to the file, byte for byte."""

import subprocess
import sys
import threading

path, *argv = sys.argv[1:]
agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert agent.stdin is not None
assert agent.stdout is not None


def hand_on() -> None:
    assert agent.stdin is not None
    for line in sys.stdin.buffer:
        agent.stdin.write(line)
        agent.stdin.flush()
    agent.stdin.close()


threading.Thread(target=hand_on, daemon=True).start()
with open(path, "wb") as file:  # noqa: PTH123 - it must load nothing that takes time
    for line in agent.stdout:
        file.write(line)
        file.flush()
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
sys.exit(agent.wait())
