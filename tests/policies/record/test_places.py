"""A policy file that cannot be used says where: file, line, column, what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.policies.record.export import ExportedPolicy, ExportError, load_policy, write_policy
from equipoise.policies.registry import make_policy


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("format: 1", "format: 7", "1:1", "format 7, this version reads 1"),
        ("contract: 1", "contract: 9", "12:1", "damaged: its content does not match its digest"),
        ("contract: 1", "contrakt: 1", "2:1", "unknown key 'contrakt'"),
        ("contract: 1\n", "", "1:1", "key 'contract' is missing"),
        ("profile: {}", "profile: {", "11:1", "not YAML: "),
        ("profile: {}", "profile: *a", "9:10", "aliases are not allowed"),
        ("profile: {}", "profile: {name: .nan}", "9:17", "'.nan' is not a number"),
        ("profile: {}", "profile: \x07", "9:10", "not YAML: special characters are not allowed"),
        ("profile: {}", "profile: \udcff", "9:10", "not a text file"),
        ("format: 1", "- format: 1\n  a", "3:1", "not YAML"),
    ],
)
def test_what_is_wrong_has_a_place(tmp_path: Path, old: str, new: str, place: str, says: str) -> None:
    path = tmp_path / "policy.yaml"
    write_policy(ExportedPolicy(make_policy("s1+s2")), path)
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new), errors="surrogateescape")
    with pytest.raises(ExportError) as wrong:
        load_policy(path)
    (line,) = str(wrong.value).splitlines()
    assert line.startswith(f"{path}:{place}")
    assert says in line
