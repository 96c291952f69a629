"""Imported before torch where a store is hosted: of each message that is none of its own, it would print a page."""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
