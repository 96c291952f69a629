"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Kernels compile on their first call, which would break any deadline; automatic builds use fixed examples.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
