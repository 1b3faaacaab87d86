"""Figures for Prometheus, on a port of their own. They count requests and outcomes; they name no person and no case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server

from tdumpra.errors import InputFileError


class Metrics:
    """What is counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("tdumpra_requests", "Requests.", ["method", "route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "tdumpra_request_seconds", "Time to answer.", ["route"], registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )  # fmt: skip
        self._predictions = Counter("tdumpra_predictions", "Predictions.", ["model", "gate"], registry=self.registry)
        self._refused = Counter("tdumpra_uploads_refused", "Uploads that were not taken.", registry=self.registry)
        self._under_way = Gauge("tdumpra_images_under_way", "Images under way.", registry=self.registry)

    def watch(self, under_way: Callable[[], float]) -> None:
        """Ask for the number of images under way whenever somebody looks."""
        self._under_way.set_function(under_way)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def prediction(self, model: str, gate: str) -> None:
        """Count a prediction."""
        self._predictions.labels(model, gate).inc()

    def refused(self) -> None:
        """Count an upload that was not taken."""
        self._refused.inc()

    def text(self) -> str:
        """Return all figures in Prometheus' format."""
        return generate_latest(self.registry).decode()

    def serve(self, host: str, port: int) -> Any:
        """Answer on a port of their own; return the server."""
        try:
            return start_http_server(port, addr=host, registry=self.registry)[0]
        except OSError as error:
            said = f"cannot serve figures at {host}, port {port}: {error.strerror or error}"
            raise InputFileError(f"{said}; try another --metrics-port") from error
