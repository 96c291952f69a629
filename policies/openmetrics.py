"""Prometheus' text format as OpenMetrics 1.0, for scrapers that ask for it."""

from __future__ import annotations

import re

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def negotiated(text: str, accept: str | None) -> tuple[bytes, str]:
    """(body, content type) of metrics in Prometheus' text format, for a request with this Accept header."""
    if "application/openmetrics-text" not in (accept or ""):
        return text.encode(), PROMETHEUS
    return as_openmetrics(text).encode(), OPENMETRICS


def as_openmetrics(text: str) -> str:
    """Counters are named without `_total` where they are declared, and the end is marked."""
    families = re.sub(r"^(# (?:HELP|TYPE) \S+?)_total ", r"\1 ", text.strip("\n"), flags=re.MULTILINE)
    return f"{families}\n# EOF\n" if families else "# EOF\n"
