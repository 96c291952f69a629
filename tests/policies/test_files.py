"""Files appear whole or not at all."""

import os
from pathlib import Path

import pytest

from equipoise.base.files import draft_of, replacing, write_whole


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "a.txt"
    write_whole(target, "ü")
    write_whole(target, b"second")
    assert target.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [target]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    write_whole(target, "old")

    def interrupted():
        with replacing(target) as proposal:
            proposal.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    target = tmp_path / "missing" / "a.txt"
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(target, "x")
    assert caught.value.filename == str(target)
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "b.txt"):
        Path(tmp_path / "source").read_text()  # another file's error stays that file's
    assert caught.value.filename == str(tmp_path / "source")


def test_two_processes_do_not_share_a_draft(tmp_path, monkeypatch):
    mine = draft_of(tmp_path / "a.txt")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert draft_of(tmp_path / "a.txt") != mine
