"""Tools of all pages: templates, figures as text, files and pictures inside the page, file names from case ids.

A page is one file: style, scripts and pictures are in it and nothing is fetched. Its content security policy allows
only scripts whose hash it names, so that no class name or id can smuggle in another.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Return a page from a template that extends ``base.html``; ``values`` are escaped, ``scripts`` run at its end."""
    sources = _sources(("theme.js", *scripts), TEMPLATES)
    return _fill(_environment(), template, sources, policy=_POLICY.format(scripts=_hashes(sources)), **values)


def render_served(
    template: str, *, folder: Path, policy: str, scripts: Sequence[str] = (), **values: Any
) -> tuple[str, str]:
    """Return a page of a server, and the content security policy that goes into its header.

    ``folder`` holds further templates and scripts; ``policy`` has ``{scripts}`` where the hashes of the scripts go.
    """
    sources = _sources(("theme.js", *scripts), folder, TEMPLATES)
    html = _fill(_environment(folder), template, sources, policy=None, **values)
    return html, policy.format(scripts=_hashes(sources))


def require() -> None:
    """Raise if pages cannot be written here; called before any work."""
    _environment()


def data_uri(image: ArrayLike | Image.Image, *, size: int | None = None, quality: int = 85) -> str:
    """Return a uint8 picture as a JPEG for ``src=…``; ``size`` bounds its longer side."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
    if size is not None and max(picture.size) > size:
        picture = picture.copy()
        picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "JPEG", quality=quality, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def download(text: str, kind: str = "text/csv") -> str:
    """Return a file as an address that needs no network."""
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def number(value: float | None, digits: int = 4) -> str:
    """Format a figure; one that the data do not define is "undefined"."""
    return "undefined" if value is None or value != value else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 4) -> str:
    """Format a change with its sign, a true minus where it is negative."""
    return "undefined" if value is None or value != value else f"{value:+.{digits}f}".replace("-", "−")


def percent(share: float) -> str:
    """Format a share as a whole percentage, with a decimal where it is small."""
    return f"{share:.1%}" if 0 < share < 0.095 else f"{share:.0%}"


def sentence(text: str) -> str:
    """Begin words with a capital and end them with a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!")) else ".")


def page_name(case_id: str) -> str:
    """Return the file name of a case's page: readable, safe in any file system, and different for every id."""
    if _SAFE_NAME.fullmatch(case_id) and not case_id.endswith("."):
        return f"{case_id}.html"
    slug = re.sub(r"[^A-Za-z0-9]+", "-", case_id).strip("-")[:_LONGEST_SLUG] or "case"
    return f"{slug}~{hashlib.sha256(case_id.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}.html"


def raw(markup: str) -> str:
    """Mark our own markup, such as an SVG chart, as not to be escaped. Never for a user's text."""
    from markupsafe import Markup  # comes with jinja2

    return Markup(markup)


def _fill(environment: Environment, template: str, sources: Sequence[str], /, **values: Any) -> str:
    style = raw((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    scripts = [raw(source) for source in sources]
    return environment.get_template(template).render(style=style, scripts=scripts, version=__version__, **values)


def _sources(names: Sequence[str], *folders: Path) -> list[str]:
    places = [next(folder / name for folder in folders if (folder / name).is_file()) for name in names]
    return [place.read_text(encoding="utf-8").strip() for place in places]


@cache
def _environment(*folders: Path) -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("jinja2", "report", "writing pages") from error
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "signed": signed, "sentence": sentence, "thousands": "{:,}".format}
    return environment


def _hashes(scripts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
