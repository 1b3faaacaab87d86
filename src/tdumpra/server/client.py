"""A small client of the server, for scripts. It needs no extra, and loads no torch.

client = Client("https://reader.example.org", token="tdumpra_…")
client.predict("lesion.jpg")["label"]
case = client.add_case("lesion.jpg", lesion="L-17")
"""

from __future__ import annotations

import json
import secrets
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from tdumpra.errors import InputFileError, TdumpraError


class ServerError(TdumpraError):
    """The server turned a request away, or does not answer."""

    def __init__(self, status: int | None, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """A server, and a token to use it with.

    A request that finds the server busy or away is sent again, up to ``tries`` times. Writes carry a key, so that one
    that did arrive is not done twice.
    """

    def __init__(self, address: str, token: str | None = None, *, tries: int = 5, seconds: float = 60.0) -> None:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ValueError(f"address must begin with http:// or https://, not {address!r}")
        self._address, self._token, self._tries, self._seconds = address.rstrip("/"), token, tries, seconds

    def predict(self, image: str | Path, *, evidence: bool = False, lesion: str | None = None) -> dict[str, Any]:
        """Return what the active model says of an image; nothing is stored."""
        query = {"evidence": "true" if evidence else "false", **({} if lesion is None else {"lesion": lesion})}
        return self._json("POST", "/v1/predict", query=query, image=image)

    def add_case(self, image: str | Path, *, lesion: str | None = None) -> dict[str, Any]:
        """Store an image as a case; return its ``id`` and ``number``."""
        return self._json("POST", "/v1/cases", query={} if lesion is None else {"lesion": lesion}, image=image)

    def cases(self, *only: str, below: int | None = None) -> dict[str, Any]:
        """Return a page of cases that all the filters ``only`` let pass."""
        query: list[tuple[str, Any]] = [("only", each) for each in only]
        return self._json("GET", "/v1/cases", query=[*query, *([] if below is None else [("below", below)])])

    def case(self, case_id: str) -> dict[str, Any]:
        """Return a case."""
        return self._json("GET", f"/v1/cases/{quote(case_id, safe='')}")

    def read(self, case_id: str, label: str, *, confidence: int, comment: str = "") -> dict[str, Any]:
        """Give a reading."""
        said = {"label": label, "confidence": confidence, "comment": comment}
        return self._json("POST", f"/v1/cases/{quote(case_id, safe='')}/readings", body=said)

    def decide(self, case_id: str, label: str, *, comment: str = "") -> dict[str, Any]:
        """Decide a case."""
        said = {"label": label, "comment": comment}
        return self._json("POST", f"/v1/cases/{quote(case_id, safe='')}/decisions", body=said)

    def models(self) -> list[dict[str, Any]]:
        """Return the models that are loaded, the active one first."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/models")["models"]
        return found

    def export(self, path: str | Path) -> Path:
        """Write the decided cases to a ZIP."""
        from tdumpra.writing import write_bytes  # loads torch, which nothing else here needs

        write_bytes(path, self._send("GET", "/v1/export"))
        return Path(path)

    def _json(
        self, method: str, path: str, *, query: Any = (), image: str | Path | None = None, body: Any = None
    ) -> dict[str, Any]:
        data, kind = None, "application/json"
        if image is not None:
            data, kind = _bytes_of(image), "application/octet-stream"
        elif body is not None:
            data = json.dumps(body).encode()
        words = f"?{urlencode(query)}" if query else ""
        found: dict[str, Any] = json.loads(self._send(method, path + words, data, kind))
        return found

    def _send(self, method: str, path: str, data: bytes | None = None, kind: str = "") -> bytes:
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if data is not None:
            headers |= {"Content-Type": kind, "Idempotency-Key": secrets.token_hex(16)}
        for left in reversed(range(self._tries)):
            request = Request(self._address + path, data, headers, method=method)
            try:
                with urlopen(request, timeout=self._seconds) as answer:
                    found: bytes = answer.read()
                    return found
            except HTTPError as error:
                with error:
                    wait, said = error.headers.get("Retry-After"), _detail(error.read())
                if wait is None or not left:
                    raise ServerError(error.code, said) from None
                time.sleep(min(float(wait), self._seconds))
            except (URLError, OSError, HTTPException) as error:  # the last where an answer was cut short
                if not left:
                    raise ServerError(None, f"{self._address} does not answer: {error}") from error
                time.sleep(1)
        raise ServerError(None, f"{self._address} was not asked: tries must be at least 1")


def _bytes_of(image: str | Path) -> bytes:
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise InputFileError(f"cannot read {image}: {error.strerror or error}") from error


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return "the server turned the request away"
