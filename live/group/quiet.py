"""Imported before torch by a process that hosts a store: silences the page printed for each invalid message."""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
