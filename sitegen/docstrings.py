"""Docstrings for the API pages: the roles and equations that the code writes for Sphinx, as Markdown and MathML."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

from sitegen.mathml import to_mathml

_EQUATION = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)
_MATH = re.compile(r":math:`([^`]+)`")
_ATTRIBUTES = re.compile(r"^Attributes:\n((?:    .*(?:\n|\Z))+)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def to_markdown(text: str) -> str:
    """One docstring, converted."""
    text = _EQUATION.sub(lambda found: f'{found[1]}<div class="equation">{to_mathml(found[2], block=True)}</div>', text)
    text = _MATH.sub(lambda found: to_mathml(found[1]), text)
    text = _ATTRIBUTES.sub(lambda found: f"**Attributes:**\n\n{_as_list(found[1])}\n", text)
    text = _ROLE.sub(r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _as_list(section: str) -> str:
    """``name: text`` as bullets: Griffe would look for types of attributes that are set by methods, and err."""
    return re.sub(r"^    (\w+): ", r"- `\1`: ", section, flags=re.MULTILINE)


class SphinxRoles(Extension):
    """Griffe extension that converts every docstring."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)
