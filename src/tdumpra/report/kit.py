"""What all pages share: templates, pictures inside the file, and file names from any case's id.

A page is one file. Style, script and pictures stand in it, nothing is fetched, and its content security policy says
so: the one script that may run is named there by its hash, so that no class name or id can smuggle in another.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from tdumpra import __version__
from tdumpra.errors import MissingExtraError

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LONGEST_SLUG = 48


def render(template: str, *, scripts: Sequence[str] = (), **values: Any) -> str:
    """A page from a template that extends ``base.html``; every value is escaped.

    Args:
        template: its file name in ``report/templates``.
        scripts: further files of that folder, run at the end of the page.
        values: what the template names.
    """
    sources = [(TEMPLATES / name).read_text(encoding="utf-8").strip() for name in ("theme.js", *scripts)]
    environment = _environment()
    return environment.get_template(template).render(
        style=raw((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        scripts=[raw(source) for source in sources],
        policy=_POLICY.format(scripts=" ".join(map(_hash_of, sources))),
        version=__version__,
        **values,
    )


def require() -> None:
    """Say at once, before any work, that pages cannot be written here."""
    _environment()


def data_uri(
    image: ArrayLike | Image.Image,
    *,
    size: int | None = None,
    encoding: Literal["jpeg", "png"] = "jpeg",
    quality: int = 85,
) -> str:
    """A picture, (h, w), (h, w, 3) or (h, w, 4) in uint8, as text for ``src=…``; ``size`` bounds its longer side."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
    if size is not None and max(picture.size) > size:
        picture = picture.copy()
        picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if encoding == "jpeg":
        picture.convert("RGB").save(buffer, "JPEG", quality=quality, optimize=True)
    else:
        picture.save(buffer, "PNG", optimize=True)
    return f"data:image/{encoding};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def page_name(case_id: str) -> str:
    """The name of a case's page, without folder: readable, safe in any file system, and different for every id."""
    if _SAFE_NAME.fullmatch(case_id) and not case_id.endswith("."):
        return f"{case_id}.html"
    slug = re.sub(r"[^A-Za-z0-9]+", "-", case_id).strip("-")[:_LONGEST_SLUG] or "case"
    return f"{slug}~{hashlib.sha256(case_id.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}.html"


def raw(markup: str) -> str:
    """Markup of our own making, an SVG chart for instance, that is not to be escaped. Never for a user's text."""
    from markupsafe import Markup  # comes with jinja2

    return Markup(markup)


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("jinja2", "report", "writing pages") from error
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _hash_of(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
