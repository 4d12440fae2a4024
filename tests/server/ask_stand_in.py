"""A stand-in for a runner: asks over /v1/asks, waits at whichever server is there, uses the answer and acts, once.

argv: the servers' addresses, the name of its waiter, where it acts. The token comes by the environment. It says what
happens on its standard output, a line each.
"""

import os
import sys
import time

import httpx2

LIMIT = 300.0  # seconds: a test's time


def say(word: str, what: str) -> None:
    sys.stdout.write(f"{word} {what}\n")
    sys.stdout.flush()


def main() -> None:
    servers, waiter, act = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
    headers = {"authorization": f"Bearer {os.environ['TOKEN']}", "idempotency-key": waiter}
    ends = time.monotonic() + LIMIT
    with httpx2.Client(headers=headers, timeout=30.0) as http:

        def send(method: str, path: str, **how: object) -> httpx2.Response:
            """At the first server that answers; again and again."""
            while time.monotonic() < ends:
                for server in servers:
                    try:
                        answer = http.request(method, server + path, **how)  # type: ignore[arg-type]
                    except httpx2.TransportError:
                        continue
                    if answer.status_code != 503:
                        return answer
                time.sleep(0.1)
            raise TimeoutError(path)

        body = {"tool": "shell.run", "params": {"command": f"deploy {waiter}"}, "waiter": waiter}
        ask = send("POST", "/v1/asks", json=body).json()
        say("asked", ask["id"])
        while ask["status"] == "pending":
            ask = send("GET", f"/v1/asks/{ask['id']}?wait=5").json()
        say("told", ask["status"])
        if ask["status"] == "approved":
            used = send("POST", f"/v1/asks/{ask['id']}/use")
            say("used", str(used.status_code))
            if used.status_code == 200:
                http.post(act, headers={"idempotency-key": ask["id"]}, json={"waiter": waiter})
    say("done", "")


main()
