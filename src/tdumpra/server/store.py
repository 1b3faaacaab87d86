"""Files of a server: images by the hash of their content, and a copy of each model that was served."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from tdumpra.errors import ArtifactError
from tdumpra.foreign import cannot_read
from tdumpra.server.refusals import RefusedError, disk_full, not_found
from tdumpra.writing import make_folder, write_bytes

_DIGEST = re.compile("[0-9a-f]{64}")
_LEAST_FREE = 64 * 2**20  # bytes of the disk that must be free before an image is taken


class Store:
    """The folder of a server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (root, self.incoming, root / "images", root / "models"):
            make_folder(folder)

    @property
    def incoming(self) -> Path:
        """Where uploads lie while they are decoded."""
        return self.root / "incoming"

    def has_room(self) -> bool:
        """Return whether the disk takes another image."""
        return shutil.disk_usage(self.root).free > _LEAST_FREE

    def put(self, image: bytes, preview: bytes) -> str:
        """Keep an image and its small picture; return its name, the SHA-256 of its bytes."""
        digest = hashlib.sha256(image).hexdigest()
        if not self.has_room():
            raise disk_full()
        make_folder(self.image(digest).parent)
        for path, data in ((self.preview(digest), preview), (self.image(digest), image)):
            if not path.is_file():
                write_bytes(path, data)
        return digest

    def image(self, digest: str) -> Path:
        """Return where an image lies."""
        return self._place(digest, ".png")

    def preview(self, digest: str) -> Path:
        """Return where the small picture of an image lies."""
        return self._place(digest, ".jpg")

    def read(self, path: Path) -> bytes:
        """Return the bytes of a picture."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise not_found("image") from None
        except OSError as error:
            raise RefusedError(503, "the image cannot be read: try again", retry_after=5) from error

    def is_intact(self, digest: str) -> bool:
        """Return whether an image is there, and is what its name says."""
        path = self.image(digest)
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest

    def remove(self, digest: str) -> None:
        """Forget an image."""
        for path in (self.image(digest), self.preview(digest)):
            path.unlink(missing_ok=True)

    def sweep(self, known: Collection[str]) -> None:
        """Remove uploads that were cut short, and images of no case: a server was killed before it recorded them."""
        for path in self.incoming.iterdir():
            path.unlink(missing_ok=True)
        for path in (self.root / "images").glob("??/*"):
            if path.stem not in known:
                path.unlink(missing_ok=True)

    def keep_model(self, path: Path) -> tuple[str, Path]:
        """Copy a model, so that what it said can be computed again; return its SHA-256 and the copy."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise cannot_read(path, error, ArtifactError) from error
        digest = hashlib.sha256(data).hexdigest()
        kept = self.model(digest[:16])
        if not kept.is_file() or hashlib.sha256(kept.read_bytes()).hexdigest() != digest:
            write_bytes(kept, data)
        return digest, kept

    def model(self, name: str) -> Path:
        """Return where the copy of a model lies."""
        return self.root / "models" / f"{name}.safetensors"

    def _place(self, digest: str, suffix: str) -> Path:
        if not _DIGEST.fullmatch(digest):  # the name of a file never comes from outside
            raise ValueError(f"{digest!r} is no SHA-256")
        return self.root / "images" / digest[:2] / f"{digest}{suffix}"
