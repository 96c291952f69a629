"""Reads a report as a browser without JavaScript would: elements, texts, and what is embedded."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "wbr", "input", "link", "img", "hr"}


class Page(HTMLParser):
    """A parsed report. Raises AssertionError where elements are not closed as they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.text = ""
        self.scripts: dict[str, str] = {}
        self.script: str | None = None
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        self.tags.append((tag, named))
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.script = str(named.get("id", "code"))
            self.scripts[self.script] = ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> ends {self.open[-3:]}"
        self.open.pop()
        self.script = None

    def handle_data(self, data: str) -> None:
        if self.script is not None:
            self.scripts[self.script] += data
        elif "style" not in self.open:
            self.text += data + " "

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of all elements of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def data(self) -> Any:
        """The JSON that the page's code reads."""
        return json.loads(self.scripts["data"])

    def blob(self, key: str) -> bytes:
        """A compressed part."""
        return gzip.decompress(base64.b64decode(self.scripts[key]))
