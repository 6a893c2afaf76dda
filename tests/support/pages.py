"""Pages read back, for tests."""

from __future__ import annotations

from html.parser import HTMLParser


class Read(HTMLParser):
    """Elements with their attributes, and texts; complains about elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.texts: dict[str, list[str]] = {}  # by the element that they stand in
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in wanted.items())]

    def values(self, tag: str, name: str) -> list[str]:
        """Of an attribute, wherever the element has it."""
        return [attributes[name] or "" for attributes in self.all(tag) if name in attributes]
