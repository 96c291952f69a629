"""Python reads this at its start where the folder is on its path, as `tests.mutation.children` has it."""

import os

if os.environ.get("COVERAGE_PROCESS_START"):
    from tests.mutation.children import begin

    os.register_at_fork(after_in_child=begin)
    begin()
