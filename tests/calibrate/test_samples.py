"""Raw samples: kept exactly, continued after an interruption, never mixed across conditions."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.calibrate.profile import build_profile
from equipoise.calibrate.samples import Sample, SamplesError, SampleSet, SampleWriter, key_of, merge, read_samples
from equipoise.sim.hardware.profile import load_profile, save_profile

HERE = {"device": "A", "driver": "580.1", "power_limit_w": 700.0, "load_1min": 0.3}


def write(path: Path, samples: list[Sample], conditions: dict[str, Any] | None = None) -> None:
    writer = SampleWriter(path, conditions or HERE, {"numpy": "2"})
    for sample in samples:
        writer.add(sample)
    writer.close()


COPY = Sample("copy", {"bytes": 8, "array_bytes": 4}, (1e-3, 2e-3), "s", 0, "2030-01-02T03:04:05+00:00")


@given(st.lists(st.floats(1e-9, 1e9, allow_nan=False), max_size=20), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_what_was_written_is_read_to_seven_digits(tmp_path_factory: Any, values: list[float], round_: int) -> None:
    path = tmp_path_factory.mktemp("samples") / "s.jsonl"
    series = {"time_s": [0.1, 0.2], "power_w": [5.0, 6.0]}
    written = Sample("x", {"a": 1, "b": "two", "c": None}, tuple(values), "1", round_, "2030", series)
    write(path, [written])
    (read,) = read_samples(path).samples
    assert read.values == pytest.approx(values, rel=1e-6)
    assert (read.kind, read.parameters, read.unit, read.round) == ("x", written.parameters, "1", round_)
    assert read.columns == series


def test_a_session_continues_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write(path, [COPY])
    writer = SampleWriter(path, HERE | {"load_1min": 9.0}, {})
    assert list(writer.done) == [key_of("copy", {"bytes": 8, "array_bytes": 4}, 0)]
    writer.add(Sample("copy", {"bytes": 8, "array_bytes": 4}, (3e-3,), "s", 1))
    writer.close()
    assert [s.round for s in read_samples(path).samples] == [0, 1]


def test_two_sessions_never_write_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first = SampleWriter(path, HERE, {})
    with pytest.raises(SamplesError, match=f"{path}: another calibration writes to this file"):
        SampleWriter(path, HERE, {})
    first.add(COPY)
    first.close()
    second = SampleWriter(path, HERE, {})
    assert len(second.done) == 1
    second.close()
    with pytest.raises(SamplesError, match="begun under other conditions"):
        SampleWriter(path, HERE | {"driver": "other"}, {})
    SampleWriter(path, HERE, {}).close()


def test_a_line_that_was_cut_off_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write(path, [COPY, Sample("read", {"bytes": 8, "array_bytes": 4}, (1.0,))])
    path.write_text(path.read_text()[:-25])
    found = read_samples(path)
    assert [s.kind for s in found.samples] == ["copy"]
    assert found.notes == (f"{path}:3: cut off, left out",)
    writer = SampleWriter(path, HERE, {})
    writer.add(Sample("triad", {"bytes": 8, "array_bytes": 4}, (1.0,)))
    writer.close()
    assert [s.kind for s in read_samples(path).samples] == ["copy", "triad"]
    assert read_samples(path).notes == ()


@pytest.mark.parametrize("name", ["driver", "power_limit_w", "device"])
def test_other_conditions_are_never_mixed(tmp_path: Path, name: str) -> None:
    other = HERE | {name: 650.0 if name == "power_limit_w" else "other"}
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write(a, [COPY])
    write(b, [COPY], other)
    with pytest.raises(SamplesError, match=f"different conditions are not mixed: {name}: "):
        merge([read_samples(a), read_samples(b)])
    with pytest.raises(SamplesError, match=f"begun under other conditions: {name}: "):
        SampleWriter(a, other, {})


def test_missing_and_binary_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SamplesError, match="No such file"):
        read_samples(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SamplesError, match="not a text file"):
        read_samples(tmp_path / "binary")


def test_numbers_that_are_none_are_refused_when_written(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path / "s.jsonl", HERE, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.add(Sample("x", {}, (float("nan"),)))
    writer.close()


def test_compressed_samples_are_read_and_damage_is_one_line(tmp_path: Path) -> None:
    plain, packed = tmp_path / "s.jsonl", tmp_path / "s.jsonl.gz"
    write(plain, [COPY])
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_samples(packed) == read_samples(plain)
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(SamplesError, match=r"s\.jsonl\.gz: the compressed file is damaged"):
        read_samples(packed)
    packed.write_bytes(b"no gzip")
    with pytest.raises(SamplesError, match="Not a gzipped file"):
        read_samples(packed)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_to_a_sample_is_more_than_one_line(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Whatever stands in a record, it is refused with its place, or a profile comes out that can be saved."""
    records = [
        {"kind": "copy", "parameters": {"bytes": 2e9, "array_bytes": 1e9}, "values": [1e-3, 2e-3], "round": 0},
        {"kind": "fma", "parameters": {"flop": 1e9, "precision": "fp32"}, "values": [1e-3], "round": 0},
        *(
            {
                "kind": "training",
                "parameters": {"batch": b, "workload": "w", "precision": "fp32", "framework": "f"},
                "values": [1e-3 * b],
                "round": 0,
            }
            for b in (1, 2, 4)
        ),
        *(
            {
                "kind": "collective",
                "parameters": {"bytes": 4**k, "ranks": 2, "collective": "all_reduce", "backend": "b"},
                "values": [1e-5 * k],
                "round": 0,
            }
            for k in range(3, 6)
        ),
    ]
    record = data.draw(st.sampled_from(records))
    target = data.draw(st.sampled_from([record, record["parameters"]]))
    assert isinstance(target, dict)
    key = data.draw(st.sampled_from(sorted(target)))
    if data.draw(st.booleans()):
        target[key] = data.draw(JUNK)
    else:
        del target[key]
    folder = tmp_path_factory.mktemp("damaged")
    header = {"schema_version": 1, "conditions": {"device": "d", "memory_bytes": 1e9}}
    lines = [json.dumps(line) for line in (header, *records, records[-1])]
    (folder / "s.jsonl").write_text("\n".join(lines) + "\n")
    refused = None
    try:
        profile, _ = build_profile(read_samples(folder / "s.jsonl"), "p")
    except ValueError as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
        return
    save_profile(profile, folder / "p.yaml")
    assert load_profile(str(folder / "p.yaml")) == profile


def test_a_measurement_given_twice_is_not_counted_twice() -> None:
    """The second copy would look like further rounds that agree, and make every interval too narrow."""
    sample = Sample("copy", {"bytes": 2, "array_bytes": 1}, (1.0, 1.1), "s", 0, "2026-01-01T00:00:00+00:00")
    one = SampleSet({"device": "d"}, {}, (sample,))
    with pytest.raises(SamplesError, match="1 samples are given twice, such as"):
        merge([one, one])
    later = SampleSet({"device": "d"}, {}, (replace(sample, at="2026-01-02T00:00:00+00:00"),))
    assert [s.round for s in merge([one, later]).samples] == [0, 1]
