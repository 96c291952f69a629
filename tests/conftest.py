"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A shell starts background jobs with Ctrl-C ignored, and what they start inherits that; tests send the signal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels compile on their first call, which would break any deadline; automatic builds use fixed examples.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
