"""Look at prepared images, and count what is decoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tdumpra.data.images import cache as cache_module
from tdumpra.data.images import store
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.prepare import Prepared
from tdumpra.data.manifest import Manifest
from tdumpra.data.sources.files import FileReader

SMALL = Framing(height=16, width=20)


def images(prepared: Prepared) -> np.ndarray:
    return prepared.images.read(np.arange(len(prepared.images)))


def expected(manifest: Manifest, framing: Framing = SMALL) -> np.ndarray:
    return np.stack([framing.apply(FileReader()(record)) for record in manifest.records])


def decoded(monkeypatch: Any) -> list[str]:
    """The ids of records that are decoded from now on, in this process."""
    seen: list[str] = []
    real = store.frame_record

    def watch(record: Any, *rest: Any) -> Any:
        seen.append(record.id)
        return real(record, *rest)

    monkeypatch.setattr(cache_module, "frame_record", watch)
    return seen
