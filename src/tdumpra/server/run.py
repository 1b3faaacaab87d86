"""Start a server and keep it running until it is stopped."""

from __future__ import annotations

import logging

import uvicorn

from tdumpra.server.app import make_app
from tdumpra.server.service import Service

_KEEP_ALIVE = 10  # seconds that an idle connection stays


def run(service: Service) -> None:
    """Answer requests until Ctrl-C or SIGTERM; requests under way are finished."""
    settings = service.settings
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    figures = None
    if settings.metrics_port is not None:
        figures = service.metrics.serve(settings.host if settings.is_loopback else "127.0.0.1", settings.metrics_port)
    try:
        uvicorn.run(
            make_app(service),
            host=settings.host,
            port=settings.port,
            access_log=False,  # addresses may hold ids and names: the guard logs routes
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=30,
            h11_max_incomplete_event_size=settings.header_bytes,
            http="h11",
            log_level="warning",
        )
    finally:
        if figures is not None:
            figures.shutdown()
            figures.server_close()
