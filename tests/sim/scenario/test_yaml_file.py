# ruff: noqa: E501 - tables of cases read best with one case a line
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies import registry as policies
from equipoise.sim.hardware.profile import HardwareProfile, save_profile, scenarios_dir
from equipoise.sim.loading.file import InputError, dump, load, read_scenario
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import MAX_VALUES, read_tree, write_tree

BASE = """\
schema_version: 1
name: case
cluster:
  nodes:
    - {name: node, count: 4, gpus: 2}
workload:
  models:
    m: {sample_time: 1 ms, parameters: 1e6}
  jobs:
    - {gpus: 2, duration: 1 h}
    - {gpus: 4, model: m, steps: 10, global_batch: 8}
"""


def write(folder: Path, text: str, name: str = "s.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str, *overrides: str) -> list[str]:
    """Lines of the InputError that loading `text` raises, without the file's name."""
    path = write(folder, text)
    with pytest.raises(InputError) as caught:
        load(path, overrides)
    return [line.removeprefix(f"{path}:") for line in caught.value.lines]


def test_a_file_becomes_a_scenario_in_base_units(tmp_path: Path) -> None:
    scenario = load(write(tmp_path, BASE))
    assert scenario.workload.jobs[0].duration == 3600.0
    assert scenario.workload.models["m"].parameters == 1e6
    assert scenario.policy == ("fifo",)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("count: 4", "cuont: 4", "5:20: cluster.nodes.0.cuont: unknown key; did you mean 'count'?"),
        ("count: 4", "zzz: 4", "5:20: cluster.nodes.0.zzz: unknown key; allowed: accelerator, "),
        ("count: 4", "count: 0", "5:27: cluster.nodes.0.count: 0 is not allowed, must be at least 1"),
        ("count: 4", "count: yes", "5:27: cluster.nodes.0.count: 'yes' is not a whole number"),
        ("count: 4", "speed: .inf", "5:27: cluster.nodes.0.speed: .inf is not a finite number"),
        ("count: 4", "count: 4, count: 5", "5:30: cluster.nodes.0.count: duplicate key, already given in line 5"),
        ("count: 4", "nic: 5 GB", "5:25: cluster.nodes.0.nic: '5 GB' is a size, a rate is needed (e.g. 100 Gbit/s)"),
        ("count: 4", "nic: -1", "5:25: cluster.nodes.0.nic: -1 is too small, a rate must be above 0"),
        ("1 h", "12:30", "10:27: workload.jobs.0.duration: '12:30' is not a time; write e.g. 24 h, or a number in s"),
        ("1 h", "1 h, model: m", "10:7: workload.jobs.0: needs either 'duration' (a rigid job) or 'model'"),
        ("model: m", "model: n", "11:24: workload.jobs.1.model: unknown model 'n'; known: m"),
        ("name: case", "name: 5", "2:7: name: text is needed, not 5 (put it in quotes)"),
        ("name: case\n", "", "1:1: name: is missing"),
        ("name: case", "name: !!python/object:os.system x", "2:7: name: tag 'python/object:os.system' is not"),
        ("name: case", "\tname: case", "2:1: not valid YAML: found a tab character"),
        ("schema_version: 1", "schema_version: 2", "1:17: schema_version: 2 is not allowed; allowed: 1"),
        (
            "cluster:\n",
            "cluster:\n  topology: {kind: tre}\n",
            "4:20: cluster.topology.kind: 'tre' is not allowed; allowed:",
        ),
        ("cluster:\n", "cluster:\n  gpus: 4\n", "3:1: cluster: needs either 'nodes' (at least one group) or 'gpus'"),
        (
            "cluster:\n  nodes:\n    - {name: node, count: 4, gpus: 2}\n",
            "cluster: 5\n",
            "3:10: cluster: a section is needed",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in BASE
    found = mistakes(tmp_path, BASE.replace(old, new, 1))
    assert any(line in text for text in found), found
    assert all("\n" not in text for text in found)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("gpus: 2, duration", "gpus: 9, duration", "10:14: workload.jobs.0.gpus: needs 9 GPUs, the cluster has 8"),
        (
            "steps: 10",
            "steps: 10, workers_min: 3, workers_max: 2",
            "workers_min: at least 3 workers exceed the most, 2",
        ),
        ("1e6}", "1e6, parallel: {tensor: 8}}", "workload.jobs.1.gpus: 4 GPUs are fewer than the 8 of one replica"),
        (
            "1e6}",
            "1e10}",
            "11:7: workload.jobs.1: needs 160000000000 bytes (160 GB) for one sample at a time on each of 4 GPUs; "
            "no GPUs have that much memory, the largest has 80000000000 bytes (80 GB)",
        ),
        ("gpus: 2}", "gpus: 2, accelerator: h100}", "cluster.nodes.0.accelerator: no accelerator 'h100' in hardware"),
        (
            "cluster:",
            "cluster:\n  hardware: nothing",
            "4:13: cluster.hardware: unknown hardware profile 'nothing'; known: ",
        ),
        (
            "cluster:",
            "cluster:\n  slow_links: [{node: node-9, rate: 1e9}]",
            "4:23: cluster.slow_links.0.node: unknown node 'node-9'",
        ),
        ("name: case", "name: case\npolicy: [fifo, s9]", "3:16: policy.1: unknown stage 's9'; "),
        (
            "name: case",
            "name: case\npolicy: [{fifo: {placment: any}}]",
            "fifo: unknown parameter 'placment'; did you mean 'placement'?",
        ),
        ("name: case", "name: case\npolicy: [{fifo: {placement: 3}}]", "fifo.placement: 3 is not a str"),
        ("name: case", "name: case\npolicy: [7]", "3:10: policy.0: text is needed, not 7"),
        (
            "name: case",
            "name: case\nfaults: {spot: {group: x, mtbf: 1 h}}",
            "faults.spot.group: unknown group 'x'; known: node",
        ),
        (
            "name: case",
            "name: case\nfaults: {events: [{kind: crash, node: nod-1, at: 1, duration: 1}]}",
            "3:39: faults.events.0.node: unknown node 'nod-1'; did you mean 'node-1'?",
        ),
        (
            "global_batch: 8",
            "global_batch: 8, data: {samples: 9, placement: {kind: nodes, nodes: [node-0, x]}}",
            "workload.jobs.1.data.placement.nodes.1: unknown node 'x'",
        ),
        (
            "count: 4, gpus: 2}",
            "count: 4, gpus: 2}\n    - {name: node}",
            "6:14: cluster.nodes.1.name: 'node' is the name of two",
        ),
        ("1 h}", "1 h, arrival: 1e308}", "workload.jobs.0.arrival: 1e+308 is too large, a time must be at most 1e+12"),
        ("global_batch: 8", f"global_batch: 1{'0' * 400}", "is too large, must be at most 1e+15"),
        (
            "name: case",
            "name: case\ndecide: {every: 1e-6}",
            "decide.every: 1e-06 is not allowed, must be at least 0.001",
        ),
        ("count: 4", "count: 1e7", "5:7: cluster.nodes.0: 10000000 nodes; at most 1000000 are possible"),
        ("gpus: 2}", "gpus: 20000000}", "5:7: cluster.nodes.0: 80000000 GPUs; at most 20000000 are possible"),
        ("1 h}", "1 h, count: 1e9}", "workload.jobs.0.count: 1000000000 jobs; at most 5000000 are possible"),
        ("sample_time: 1 ms", "kind: large-products, flop_per_sample: 1e9, precision: fp8", None),
    ],
)
def test_what_does_not_fit_together_is_found_before_the_run(
    tmp_path: Path, old: str, new: str, line: str | None
) -> None:
    assert old in BASE
    text = BASE.replace(old, new, 1)
    if line is None:
        load(write(tmp_path, text))
        text = text.replace("gpus: 2}", "gpus: 2, accelerator: t4}")
        line = "workload.models.m.precision: t4 has no rate for 'fp8'; it has fp32, fp16"
    found = mistakes(tmp_path, text)
    assert len(found) == 1
    assert line in found[0]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = BASE.replace("count: 4", "count: x").replace("1 ms", "1 GB").replace("steps: 10", "steps: 0, epocs: 3")
    found = mistakes(tmp_path, text + "seed: -1\n")
    assert [line.split(": ")[1] for line in found] == [
        "cluster.nodes.0.count",
        "workload.models.m.sample_time",
        "workload.jobs.1.steps",
        "workload.jobs.1.epocs",
        "seed",
    ]


def test_yaml_1_1_traps_are_closed() -> None:
    tree = read_tree(
        "{a: 1e9, b: 12:30, c: on, no: off, d: 010, e: 2024-01-01, f: 0x10, g: 1_0, h: ~, i: True, j: -40_000, k: 1_000.5}",
        "t",
    )
    assert tree.data == {
        "a": 1e9,
        "b": "12:30",
        "c": "on",
        "no": "off",
        "d": 10,
        "e": "2024-01-01",
        "f": 16,
        "g": "1_0",
        "j": -40000,
        "k": 1000.5,
        "h": None,
        "i": True,
    }


def test_on_and_off_mean_a_boolean_only_where_one_is_needed(tmp_path: Path) -> None:
    scenario = load(write(tmp_path, BASE + "decide: {on_events: off}\n"), ["name=on"])
    assert scenario.decide.on_events is False
    assert scenario.name == "on"
    found = mistakes(tmp_path, BASE + "decide: {on_events: maybe}\n")
    assert found == ["12:21: decide.on_events: 'maybe' is neither true nor false"]


def test_anchors_and_merge_keys_work_and_own_keys_win(tmp_path: Path) -> None:
    text = BASE.replace(
        "    - {name: node, count: 4, gpus: 2}\n",
        "    - &a {name: a, count: 4, gpus: 2}\n    - {<<: *a, name: b, count: 1}\n    - {name: c, <<: [*a]}\n",
    )
    a, b, c = load(write(tmp_path, text)).cluster.nodes
    assert (a.count, b.count, b.gpus, b.name, c.name, c.count) == (4, 1, 2, "b", "c", 4)
    found = mistakes(tmp_path, text.replace("name: b, count: 1", "name: b, count: 0"))
    assert found == ["6:32: cluster.nodes.1.count: 0 is not allowed, must be at least 1"]
    assert "'<<' needs a section" in mistakes(tmp_path, BASE + "<<: 5\n")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: &a [x, x]\n"
            + "".join(
                f"{k}: &{k} [*{p}, *{p}]\n" for p, k in zip("abcdefghijklmnopqrs", "bcdefghijklmnopqrst", strict=True)
            ),
            f"more than {MAX_VALUES} values",
        ),
        ("a: &a [*a]", "an alias contains itself"),
        ("a: &a {<<: *a}", "an alias contains itself"),
        ("a: &a {<<: [*a, *a]}", "an alias contains itself"),
        ("[" * 200_000 + "]" * 200_000, "nested more than 60 deep"),
        ("a: " + "[" * 100 + "]" * 100, "nested more than 60 deep"),
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("a: 1\n---\nb: 2\n", "not valid YAML: but found another document"),
        ("[1]: 2", "a key must be text"),
        ("a: !!binary aGk=", "tag 'binary' is not allowed"),
        ("a: *b", "not valid YAML: found undefined alias"),
        ("a: \x00", "not valid YAML"),
        ("a: " + "9" * 5000, "is not a number"),
    ],
)
def test_hostile_files_end_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_tree(text, "t.yaml")
    assert all(line.startswith("t.yaml") and len(line) < 300 for line in caught.value.lines)
    assert any(message in line for line in caught.value.lines), caught.value.lines


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8 text"):
        load(tmp_path / "s.yaml")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(InputError, match="a scenario is a section"):
        load(write(tmp_path, "- 1\n"))


def test_overrides_change_values_and_are_named_in_errors(tmp_path: Path) -> None:
    overrides = [
        "cluster.nodes.0.count=7",
        "workload.jobs.0.duration=2 h",
        "decide.every=10 min",
        "policy=[sjf]",
        "workload.models.m={sample_time: 2 ms}",
        "name=",
    ]
    scenario = load(write(tmp_path, BASE), overrides)
    assert scenario.cluster.nodes[0].count == 7
    assert scenario.workload.jobs[0].duration == 7200.0
    assert scenario.decide.every == 600.0
    assert scenario.policy == ("sjf",)
    assert scenario.workload.models["m"].parameters == 0.0
    assert scenario.name == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "cluster.nodes.0.cuont=7",
            "--set cluster.nodes.0.cuont=7: cluster.nodes.0.cuont: unknown key; did you mean 'count'?",
        ),
        (
            "cluster.nodes.0.nic=7 GB",
            "--set cluster.nodes.0.nic=7 GB: cluster.nodes.0.nic: '7 GB' is a size, a rate is needed",
        ),
        ("cluster.nodes.3.count=7", "--set cluster.nodes.3.count=7: cluster.nodes: no entry '3'; allowed: 0 to 0"),
        ("cluster.nodes.x.count=7", "no entry 'x'; allowed: 0 to 0"),
        ("seed", "--set seed: write dotted.key=value"),
        ("=5", "--set =5: write dotted.key=value"),
        ("seed=[1", "--set seed=[1: not valid YAML"),
        (
            "workload.jobs.0.gpus=99",
            "--set workload.jobs.0.gpus=99: workload.jobs.0.gpus: needs 99 GPUs, the cluster has 8",
        ),
        ("policy=[nope]", "--set policy=[nope]: policy.0: unknown stage 'nope'"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, text: str, line: str) -> None:
    found = mistakes(tmp_path, BASE, text)
    assert len(found) == 1
    assert line in found[0]


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("gpus: 2}", "gpus: 2, nic: 400}", "5:44: cluster.nodes.0.nic: 400 bytes/s is implausibly small"),
        ("gpus: 2}", "gpus: 2, host_memory: 256}", "cluster.nodes.0.host_memory: 256 bytes is implausibly small"),
        ("name: case", "name: case\nenergy: {tariff: 0.1}", "3:18: energy.tariff: 0.1 USD/J is implausibly large"),
        ("1 h}", "1e12}", "workload.jobs.0.duration: 1e+12 s is implausibly large"),
        ("1e6}", "1e6, exchange: {alpha: 1e-12}}", "workload.models.m.exchange.alpha: 1e-12 s is implausibly small"),
    ],
)
def test_implausible_values_are_warned_about(tmp_path: Path, old: str, new: str, warning: str) -> None:
    assert read_scenario(write(tmp_path, BASE)).warnings == ()
    path = write(tmp_path, BASE.replace(old, new))
    (line,) = read_scenario(path).warnings
    assert line.startswith(f"warning: {path}:")
    assert warning in line


TRACE = "job_id,arrival_s,gpus,duration_s\n1,0,2,5\n"


def test_a_trace_is_found_beside_the_scenario_then_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, working = tmp_path / "beside", tmp_path / "working"
    beside.mkdir(), working.mkdir()
    monkeypatch.chdir(working)
    path = write(beside, BASE + "  trace: {file: t.csv}\n")
    with pytest.raises(InputError, match=r"s\.yaml:\d+:\d+: workload\.trace\.file: t\.csv: no such trace file"):
        read_scenario(path).trace()
    write(working, TRACE, "t.csv")
    write(beside, TRACE.replace("1,0", "2,0"), "t.csv")
    own, named = read_scenario(path).trace(), read_scenario(path, trace="t.csv").trace()
    assert own is not None
    assert named is not None
    assert own.job_id.tolist() == [2]
    assert named.job_id.tolist() == [1]
    (beside / "t.csv").unlink()
    fallback = read_scenario(path).trace()
    assert fallback is not None
    assert fallback.job_id.tolist() == [1]
    assert read_scenario(write(beside, BASE)).trace() is None


def test_a_trace_must_fit_the_scenario(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "  trace: {file: t.csv}\n")
    write(tmp_path, "job_id,arrival_s,gpus,duration_s,model\n5,0,9,5,\n6,0,1,5,mm\n", "t.csv")
    with pytest.raises(InputError) as caught:
        read_scenario(path).trace()
    assert caught.value.lines == [
        "t.csv:2:1: job 5 needs 9 GPUs, the cluster has 8",
        "t.csv:3:1: job 6 names an unknown model 'mm'; did you mean 'm'?",
    ]
    with pytest.raises(InputError, match=r"no jobs in it; give a trace \(--trace FILE\)"):
        read_scenario(write(tmp_path, BASE.split("workload")[0] + "workload: {}\n")).trace()


def test_a_hardware_profile_beside_the_scenario_is_found(tmp_path: Path) -> None:
    data = {"flop_per_s": {"bf16": 1e12}, "hbm_bytes_per_s": 1e12, "memory_bytes": 1e9}
    fabric = {"tier": "inter", "collective": "all_reduce", "alpha_s": 1e-6, "bytes_per_s": 1e9}
    accelerators = {"own": data}
    fabrics = [fabric, fabric | {"tier": "intra"}]
    profile = HardwareProfile.model_validate({"name": "own", "accelerators": accelerators, "fabrics": fabrics})
    save_profile(profile, tmp_path / "own.yaml")
    text = BASE.replace("cluster:", "cluster:\n  hardware: own.yaml").replace("gpus: 2}", "gpus: 2, accelerator: own}")
    assert load(write(tmp_path, text)).cluster.hardware == str(tmp_path / "own.yaml")
    found = mistakes(tmp_path, text.replace("own.yaml", "other.yaml"))
    assert found == ["4:13: cluster.hardware: hardware profile 'other.yaml': no such file"]


SHIPPED = [p for p in sorted(scenarios_dir().glob("*.yaml")) if "cluster" in read_tree(p.read_text(), p.name).data]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_load_without_doubts_and_survive_a_dump(path: Path, tmp_path: Path) -> None:
    assert len(SHIPPED) >= 8
    file = read_scenario(path)
    assert all("was measured on h100; times of gb200" in said for said in file.warnings)  # no stack was on GB200
    assert file.scenario.why
    assert file.scenario.expect
    assert load(write(tmp_path, dump(file.scenario))) == file.scenario


texts = st.text(max_size=12) | st.sampled_from(
    ["on", "1e9", "12:30", "~", "010", ".5", "<<", "- a", "#", "0x1F", " x "]
)


@settings(max_examples=150, deadline=None)
@given(texts, st.floats(1e-9, 1e12), st.integers(0, 2**31), st.dictionaries(texts, st.floats(1e-9, 1e3), max_size=3))
def test_any_scenario_survives_a_dump(name: str, duration: float, seed: int, models: dict[str, float]) -> None:
    data = {
        "schema_version": 1,
        "name": name,
        "why": name * 9,
        "cluster": {"nodes": [{"name": "n", "storage": duration}]},
        "workload": {"models": {k: {"sample_time": v} for k, v in models.items()}, "jobs": [{"duration": duration}]},
        "seed": seed,
    }
    scenario = Scenario.model_validate(data)
    again = Scenario.model_validate(read_tree(dump(scenario), "dump").data)
    assert again == scenario
    assert dump(again) == dump(scenario)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(texts, values, min_size=1, max_size=4))
def test_what_is_written_reads_back_equal(data: dict[str, object]) -> None:
    assert read_tree(write_tree(data), "t").data == data


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*<>|!%@'\"\n #,?0.", max_size=40))
def test_any_text_is_read_or_refused_in_lines_of_its_own(text: str) -> None:
    try:
        read_tree(text, "t.yaml")
    except InputError as error:
        assert error.lines  # noqa: PT017 - both ways are fine, nothing else may be raised
        assert all(line.startswith("t.yaml") and "\n" not in line for line in error.lines)  # noqa: PT017


def test_a_scenario_that_comes_along_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_scenario("counted").scenario.name == "counted"
    (tmp_path / "counted").write_text(BASE, encoding="utf-8")
    assert read_scenario("counted").scenario.name == "case"
    with pytest.raises(InputError, match="nothing: no such file, and no scenario of that name"):
        read_scenario("nothing")


def test_policies_as_text_and_list_mean_the_same() -> None:
    base = {"schema_version": 1, "name": "x", "cluster": {"gpus": 4}, "workload": {}}
    text, listed = (Scenario.model_validate(base | {"policy": p}) for p in ("equal+fifo", ["equal", "fifo"]))
    assert text.policy == listed.policy
    assert Scenario.model_validate(base | {"policy": "none"}).policy == ()
    named = policies.make_policy([{"fifo": {"placement": "packed"}}])
    assert policies.make_policy(named.name).stages == named.stages
