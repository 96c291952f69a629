"""YAML files: dates stay text, and an error is one line."""

from __future__ import annotations

from typing import Any

import yaml

from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.jsonfile import parse_values
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the C one where it is built
    """Reads dates as text."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_documents(file: TextFile) -> list[Any]:
    """Every document of a YAML file, or every value of a JSON file, one after the other. Raises FormatError."""
    text = file.text(RowTally())
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [*parse_values(file, text)]
        except FormatError:
            if not text.lstrip().startswith(("{}", "[]")) and "\n---" not in text:
                raise
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise file.error(0 if mark is None else mark.line + 1, f"not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise file.error(0, f"not YAML: {' '.join(str(error).split())[:200]}") from error
