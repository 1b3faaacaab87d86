"""Start a server and keep it running until it is stopped."""

from __future__ import annotations

import logging
import socket

import uvicorn

from tdumpra.errors import InputFileError
from tdumpra.server.app import make_app
from tdumpra.server.service import Service
from tdumpra.server.settings import Settings

_KEEP_ALIVE = 10  # seconds that an idle connection stays


def listen(settings: Settings) -> socket.socket:
    """Take the port, before anything is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        place, other = f"{settings.host}, port {settings.port}", f"--port {settings.port + 1}"
        raise InputFileError(f"cannot listen at {place}: {error.strerror or error}; try  {other}") from error


def run(service: Service, listener: socket.socket) -> None:
    """Answer requests until Ctrl-C or SIGTERM; requests under way are finished."""
    settings = service.settings
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    figures = None
    if settings.metrics_port is not None:
        host = settings.host if settings.is_loopback else "127.0.0.1"
        try:
            figures = service.metrics.serve(host, settings.metrics_port)
        except InputFileError:
            service.close()
            raise
    try:
        config = uvicorn.Config(
            make_app(service),
            access_log=False,  # addresses may hold ids and names: the guard logs routes
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=30,
            h11_max_incomplete_event_size=settings.header_bytes,
            http="h11",
            log_level="warning",
        )
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        if figures is not None:
            figures.shutdown()
            figures.server_close()
