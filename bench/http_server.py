"""Serves an application on a socket it was given, as Legation is served: uvloop and httptools."""

from __future__ import annotations

import socket
import sys

import uvicorn


def main(app: str, descriptor: str) -> None:
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])
