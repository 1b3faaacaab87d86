r"""Equations at build time: a fence named ``math``, and `` $`…`$ `` within a line, become MathML.

Browsers draw MathML themselves, so the site needs neither a script nor a network; the same two forms are equations on
the usual code hosts too.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

_INLINE = r"\$`([^`]+)`\$"
_ABOVE_CODE = 195  # backticks are read at 190, and these are ours


def to_mathml(latex: str, *, block: bool = False) -> str:
    """An equation as MathML; its source stays readable for those who do not see it."""
    latex = re.sub(r"\\arg\b", r"\\operatorname{arg}", " ".join(latex.split()))  # which the converter does not know
    mathml: str = convert(latex, display="block" if block else "inline")
    unknown = re.search(r"\\[A-Za-z]+", mathml)  # what the converter did not know it has left as it was
    if unknown:
        raise ValueError(f"no MathML for {unknown[0]} in {latex!r}")
    return mathml


def math_fence(source: str, _language: str, _css_class: str, _options: Any, _md: Markdown, **_: Any) -> str:
    """Formatter of a ``math`` fence for ``pymdownx.superfences``."""
    return f'<div class="equation">{to_mathml(source, block=True)}</div>'


class InlineMath(Extension):  # type: ignore[misc]
    """Markdown extension for equations within a line."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # the name that Markdown calls
        """Read them before code."""
        md.inlinePatterns.register(_InlineEquation(_INLINE, md), "inline-math", _ABOVE_CODE)


class _InlineEquation(InlineProcessor):  # type: ignore[misc]
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str | Element, int, int]:  # noqa: N802
        return self.md.htmlStash.store(to_mathml(m[1])), m.start(0), m.end(0)
