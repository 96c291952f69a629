"""What may not be said of services, and the one line that says so."""

import re
from pathlib import Path

import pytest

from equipoise.sim.features.services.section import services_of
from equipoise.sim.loading.file import dump, load, read_scenario
from equipoise.sim.scenario.tree import InputError

LINES = {
    "schema_version": "1",
    "name": "case",
    "cluster": "{nodes: [{count: 2, gpus: 4, accelerator: a100_sxm_40gb}]}",
    "workload": "{jobs: [{duration: 100 s, gpus: 1}]}",
}
SERVICE = {
    "name": "chat",
    "batch_latency": "{measured: {1: 20 ms, 8: 50 ms}}",
    "requests": "{rate: 10/s}",
    "latency": "{p99: 200 ms}",
}


def written(folder: Path, services, **top) -> Path:
    path = folder / "case.yaml"
    text = "".join(f"{key}: {value}\n" for key, value in (LINES | top).items()) + "services:\n"
    for service in services:
        entries = [f"{key}: {value}" for key, value in (SERVICE | service).items()]
        text += "  - " + "\n    ".join(entries) + "\n"
    path.write_text(text)
    return path


def lines_of(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(path)
    return [line.removeprefix(f"{path}:") for line in caught.value.lines]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            "latency",
            "{p99: 10 ms}",
            "9:20: services.0.latency.p99: 10 ms is less than the latency of a single request, 20 ms",
        ),
        ("latency", "{}", "9:5: services.0.latency: needs exactly one of 'p50', 'p95', 'p99', e.g. p99: 200 ms"),
        (
            "latency",
            "{p50: 1 s, p99: 2 s}",
            "9:5: services.0.latency: needs exactly one of 'p50', 'p95', 'p99', e.g. p99: 200 ms",
        ),
        ("requests", "{rate: 0}", "8:22: services.0.requests.rate: 0 is too small, a rate of requests must be above 0"),
        ("replicas", "{min: 3, max: 2}", "10:29: services.0.replicas.max: 2 replicas are fewer than the 3 of 'min'"),
        ("replicas", "{max: 9}", "10:21: services.0.replicas.max: 9 replicas, but there is room for 8"),
        (
            "replicas",
            "{gpus: 5}",
            "10:22: services.0.replicas.gpus: a replica needs 5 GPUs on one node; the largest allowed node has 4",
        ),
        (
            "batch_latency",
            "{measured: {1: 20 ms, 8: 15 ms}}",
            "7:5: services.0.batch_latency: measured.8: 0.015 s is not more than the 0.02 s of 1; a larger batch must "
            "take longer",
        ),
        (
            "batch_latency",
            "{measured: {2: 20 ms}}",
            "7:21: services.0.batch_latency.measured: a batch of 1 is missing; the table begins with it",
        ),
        (
            "batch_latency",
            "{fixed: 20 ms}",
            "7:5: services.0.batch_latency: needs 'most', the requests of the largest batch",
        ),
        ("batch_latency", "{measured: {1: 20 ms}, of: a100}", None),
        (
            "placement",
            "{kind: lent, share: 0.3}",
            "10:36: services.0.placement.share: 'shared' uses a part of each GPU; 'lent' uses all of it",
        ),
        (
            "placement",
            "{on: [nodes]}",
            "10:22: services.0.placement.on.0: no accelerator or group of nodes is named 'nodes'; did you mean 'node'?",
        ),
        (
            "autoscaler",
            "{utilisation: 0}",
            "10:31: services.0.autoscaler.utilisation: 0 is not allowed, must be above 0",
        ),
    ],
)
def test_nonsense_is_one_line_at_its_place(tmp_path, key, value, line):
    found = lines_of(written(tmp_path, [{key: value}]))
    assert len(found) == 1
    if line is not None:
        assert found[0].replace(str(tmp_path), "FOLDER") == line
    else:
        assert "services.0.batch_latency.of: no accelerator 'a100'" in found[0]


def test_services_of_one_name_and_too_many_gpus(tmp_path):
    assert "'chat' is the name of two services" in lines_of(written(tmp_path, [{}, {}]))[0]
    both = [{"name": name, "replicas": "{min: 5, max: 5}"} for name in ("one", "two")]
    assert lines_of(written(tmp_path, both))[0].endswith("need 10 GPUs all the time, the cluster has 8")


def test_a_job_that_never_fits_beside_the_services(tmp_path):
    jobs = "{jobs: [{duration: 1 s, gpus: 8}]}"
    line = lines_of(written(tmp_path, [{}], workload=jobs))[0]
    assert line.endswith("workload.jobs.0.gpus: needs 8 GPUs, 7 of 8 are not reserved by services")


def test_described_jobs_that_never_fit_beside_the_services(tmp_path):
    kind = "{rate: 1/h, duration: {kind: pareto, alpha: 2}, gpus: {1: 1, 8: 1}}"
    workload = f"{{generate: {{length: 1 h, classes: [{kind}]}}}}"
    line = lines_of(written(tmp_path, [{}], workload=workload))[0]
    assert line.endswith("classes.0.gpus: needs 8 GPUs, 7 of 8 are not reserved by services")


def test_more_requests_than_all_replicas_can_answer_is_a_warning(tmp_path):
    def warnings(rate):
        return read_scenario(written(tmp_path, [{"requests": f"{{rate: {rate}}}"}])).warnings

    assert warnings("10/s") == ()
    assert "500/s arrive on average; 1 replicas answer at most 160/s" in warnings("500/s")[0]


def test_what_is_written_is_read_back_equal(tmp_path):
    case = load(written(tmp_path, [{"placement": "{kind: shared}"}]))
    (tmp_path / "again.yaml").write_text(dump(case))
    assert load(tmp_path / "again.yaml") == case
    assert services_of(case)[0].share == 0.5


def test_nodes_that_scale_are_no_reason_to_warn(tmp_path):
    path = written(tmp_path, [{}])
    text = path.read_text()
    assert "autoscale" not in text
    path.write_text(re.sub(r"(count: \d+)", r"\1, autoscale: {min: 1}", text, count=1))
    assert "rented" not in "".join(read_scenario(path).warnings)


def test_services_alone_are_refused_in_one_line(tmp_path):
    path = written(tmp_path, [{}])
    path.write_text(re.sub(r"(?m)^workload:.*(\n[ -].*)*", "workload: {}", path.read_text()))
    with pytest.raises(InputError) as caught:
        read_scenario(path).trace()
    assert len(caught.value.lines) == 1
    assert "workload: no jobs in it" in caught.value.lines[0]
