"""What the figures of the house count, on a tree small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

from tests.bench.house import measure, table

SMALL = {
    "policies/a.py": "from equipoise.policies import b\n",
    "policies/b.py": "def f():\n    from equipoise.policies.a import g\n",
    "sim/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sim.d import x\n",
    "sim/d.py": "from sim.c import y\n\n\ndef f(job, kappa, share):\n    if job.rigid:\n"
    "        return (1.0 + kappa) * share / (share + kappa)\n",
    "sim/__init__.py": "",
    "tests/test_it.py": "1\n2\n3\n",
}


def test_a_small_house_counts_as_it_should(tmp_path: Path) -> None:
    for name, text in SMALL.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = measure(tmp_path)
    assert found["files, in folders"] == "4, 2"
    assert found["files in the largest folder"] == "2 (`policies`)"
    assert found["longest file [lines]"] == "6 (`sim/d.py`)"
    assert found["lines of the product"] == "12"
    assert found["lines of the tests"] == "3"
    assert found["circles, and files in them"] == "1, 2"
    assert found["the same with imports for types"] == "2, 4"
    assert found["imports inside functions"] == "1"
    assert found["branches on the kind of job"] == "1"
    assert found["definitions: share curve"] == "1"
    assert found["definitions: overlap"] == "0"
    assert table(["then", "now"], [found, found]).splitlines()[0] == "|  | then | now |"
