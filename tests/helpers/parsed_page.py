"""HTML as a tree, by the standard library: what a test needs to ask of a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "img", "br", "hr", "link", "input"}


@dataclass
class Element:
    """A tag with its attributes, children and texts."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Everything a reader reads, with single spaces."""
        parts = (each if isinstance(each, str) else each.text for each in self.children)
        return " ".join(" ".join(parts).split())

    def all(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """Descendants of that tag with these attributes; ``class_`` asks for one of the classes."""
        return [each for each in self._walk() if each._is(tag, attributes)]

    def one(self, tag: str | None = None, **attributes: str) -> Element:
        """The only such descendant."""
        found = self.all(tag, **attributes)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} of <{tag} {attributes}>")
        return found[0]

    def _is(self, tag: str | None, attributes: dict[str, str]) -> bool:
        wanted = dict(attributes)
        class_ = wanted.pop("class_", None)
        return (
            (tag is None or self.tag == tag)
            and (class_ is None or class_ in self.attributes.get("class", "").split())
            and all(self.attributes.get(name.replace("_", "-")) == value for name, value in wanted.items())
        )

    def _walk(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child._walk()


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if self.open[-1].tag != tag:
            raise AssertionError(f"</{tag}> closes <{self.open[-1].tag}>")
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(html: str) -> Element:
    """The page as a tree; a tag that is closed out of order is an error."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    if len(builder.open) != 1:
        raise AssertionError(f"<{builder.open[-1].tag}> is never closed")
    return builder.open[0]
