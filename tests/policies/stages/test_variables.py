"""Every column that S1 to S4 read is shown to act by a test, or is no variable: a new one without fails here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from equipoise import policies
from equipoise.policies import observation as tables
from tests.policies.stages import test_directions, test_directions_s4

HERE, ROOM = Path(__file__).parent, Path(policies.__file__).parent
COLUMNS = {
    name: {*getattr(tables, name.capitalize()).columns, "id"}
    for name in ("nodes", "gpus", "workers", "jobs", "speeds", "shards", "paths", "stores")
}
WHO_AND_WHERE = {
    "gpus.job", "gpus.model", "gpus.node", "jobs.rigid", "jobs.state", "nodes.first_gpu", "paths.source",
    "paths.target", "shards.id", "shards.job", "shards.node", "shards.worker", "speeds.gpu_model", "speeds.gpus",
    "speeds.job", "stores.job", "stores.node", "workers.gpu", "workers.id", "workers.job", "workers.node",
}  # fmt: skip
"""What names a row, or says which rows belong together, or of what kind one is."""
SHOWN = {
    "gpus.memory_bytes": "S411 memory: only where it has room",
    "gpus.mig": "test_slices::test_s323_slices_where_gpus_are_cut_by_mig_if_they_pay",
    "gpus.share_free": "test_rows::test_h_the_free_share_is_handed_out_also_when_a_job_has_left",
    "gpus.share_quantum": "test_s3::test_s323_shares_are_what_the_device_can_do",
    "gpus.sm_active_ratio": "S411 efficiency: who keeps its GPUs busy gives last",
    "gpus.suspect": "test_unsound::test_its_gpu_is_suspect_after_some_windows_until_it_was_long_enough",
    "jobs.accumulation": "test_batches::test_each_further_pass_costs_its_fixed_part",
    "jobs.arrival_s": "test_frozen::test_s412_frozen_starts_jobs_in_order_of_arrival",
    "jobs.batch_max": "test_batches::test_the_batch_stays",
    "jobs.batch_reference": "test_batches::test_the_batch_stays",
    "jobs.attained_gpu_s": "test_s4::test_s422_a_job_that_starts_again_counts_with_its_restart",
    "jobs.compute_demand_flops": "S412 C: more computing, first",
    "jobs.data_demand_bytes": "S412 D: more data, first",
    "jobs.drift": "S313 drift: shorter interval",
    "jobs.duration_s": "s4.slowdown",
    "jobs.exchange_alone_s": "S422 measured exchange, without contention: the same where nothing else is known",
    "jobs.exchange_s": "S312 d: dear exchanges synchronise less often",
    "jobs.far_every": "S313 levels: near exchanges let all exchange less often",
    "jobs.far_exchange_s": "S313 K: dearer exchange, longer interval",
    "jobs.far_ratio": "S313 levels: more groups, less is gained",
    "jobs.gamma": "S422 overlap: exchanges hide, more GPUs",
    "jobs.global_batch": "S422 batch: no worker without samples",
    "jobs.goodput_samples_per_s": "S413 goodput: a change that lost is undone",
    "jobs.gpu_share_requested": "test_rows::test_h_what_was_lent_comes_back_when_a_job_waits_for_it",
    "jobs.gpu_types": "test_s4_kinds::test_a_job_that_runs_nowhere_else_keeps_its_model",
    "jobs.gpus_held": "S421, S422 u: a node that a job uses more is left",
    "jobs.gpus_per_worker": "test_s3::test_workers_of_several_gpus_are_left_alone",
    "jobs.gpus_requested": "test_s4::test_s422_whole_gangs_and_exact_requests",
    "jobs.input_bytes": "S422 d: little to read, the faster node",
    "jobs.memory_bytes": "S412 m: what needs more memory comes later",
    "jobs.micro_batch": "test_s2::test_whole_micro_batches_and_what_is_left_over",
    "jobs.near_exchange_s": "S313 levels: dear near exchanges gain less",
    "jobs.noise_scale": "test_s1::test_s111_a_new_deal_is_not_a_strange_norm_or_a_slower_worker",
    "jobs.one_gpu_model": "test_s4::test_s422_a_gang_stays_on_one_model_and_takes_the_fast_one",
    "jobs.priority": "S412 p: more important, first",
    "jobs.queued_since_s": "test_s4::test_s412_order_by_priority_demand_and_waiting",
    "jobs.remaining_samples": "test_s4::test_s413_a_resize_that_does_harm_is_undone_and_backed_off",
    "jobs.restart_s": "S422 restart: dearer, no resize",
    "jobs.service_s": "S412 s: what takes longer comes later",
    "jobs.started_s": "s4.run_s",
    "jobs.sync_interval": "S422 S3's interval: exchanges less often, more GPUs",
    "jobs.throughput_samples_per_s": "S312 beta: a change that gained little, more often again",
    "jobs.waited_s": "S412 w: who waits longer comes first",
    "jobs.work_s": "test_rows::test_d_a_running_job_shrinks_where_that_pays",
    "jobs.workers_max": "test_s4::test_s422_elastic_jobs_take_what_nobody_waits_for",
    "jobs.workers_min": "test_s4::test_s422_a_waiting_elastic_job_starts_smaller",
    "nodes.gpus": "S422 R_j: a larger node has more for each",
    "nodes.gpus_free": "test_s4::test_heavy_nodes_come_first_and_among_equals_those_with_least_free",
    "nodes.nic_busy_ratio": "S422 d: not behind a busy interface",
    "nodes.nic_bytes_per_s": "S422 d: not behind a slow interface",
    "nodes.power_cap_w": "test_power::test_other_stages_see_what_would_be_without_caps",
    "nodes.power_draw_w": "test_power::test_what_a_job_draws_says_what_a_cap_does",
    "nodes.power_idle_w": "test_power::test_three_of_four_wait_for_the_last",
    "nodes.power_max_w": "test_power::test_nothing_is_capped_without_leave_or_where_it_is_frozen",
    "nodes.rack": "S422 racks: dear exchanges stay in one",
    "nodes.storage_free_bytes": "test_s1::test_s113_a_full_node_receives_nothing",
    "nodes.up": "test_s4::test_dead_nodes_are_left_alone",
    "paths.bytes_per_s": "S211 speed: faster path, sooner here",
    "paths.latency_s": "S211 delay: later first byte, later here",
    "shards.bytes": "S212 S: smaller, fetched earlier",
    "shards.local": "S422 d: who reads from elsewhere claims less",
    "shards.needed_in_s": "S213 need: what comes late moves",
    "shards.samples": "test_directions::test_s113_takes_no_last_shard_that_could_not_be_back_in_time",
    "shards.started": "test_s1::test_s113_only_unstarted_shards_stored_on_living_nodes_move",
    "speeds.apart_exchange_s": "S422 racks: it waits where apart is slow",
    "speeds.exchange_s": "S422 exchange: dearer, fewer GPUs",
    "speeds.samples_per_s": "test_s4_kinds::test_a_model_goes_to_the_job_that_gains_most_by_it",
    "stores.ratio": "S422 d: to where more of its data is",
    "workers.capacity_samples_per_s": "S222 C: faster, more work",
    "workers.fixed_s": "S222 fixed part: of two alike, who has less per sample gets more",
    "workers.gpu_share": "S322 R: who has more keeps more",
    "workers.gradient_norm": "S111 norm: a strange one is left out",
    "workers.gradient_rate_per_s": "S112 capacity: unequal speeds, more imbalance",
    "workers.gradient_weight": "S223 weight: a gradient left out is dealt little",
    "workers.input_samples_per_s": "test_parameters::test_it_changes_a_decision",
    "workers.input_stall_s": "S322 delta: who waits for input gets less",
    "workers.load_ratio": "S113 L: a loaded receiver comes later",
    "workers.memory_free_bytes": "test_slices::test_s323_slices_where_gpus_are_cut_by_mig_if_they_pay",
    "workers.push_s": "S313 by worker: who pushes slowly, more steps apart",
    "workers.response_s_per_sample": "S222 T: slower response, less work",
    "workers.samples_max": "S223 memory: never more than fits",
    "workers.samples_owned": "S213 capacity: who has enough to do gets nothing",
    "workers.samples_per_pass": "test_batches::test_each_further_pass_costs_its_fixed_part",
    "workers.samples_per_step": "S113 C: the faster gets more data",
    "workers.share_kappa": "test_slices::test_s321_a_flat_curve_makes_more_share_worth_less",
    "workers.step_cov": "test_s3::test_s313_optimal_lengthens_the_interval_to_absorb_jitter",
    "workers.step_s": "S312 V: slow steps synchronise more often",
    "workers.wait_s": "test_slices::test_s321_an_exchange_makes_more_share_worth_less",
}
"""By column: a case of the direction tests, a parameter of `test_parameters`, or another test."""


def read() -> set[str]:
    """TABLE.COLUMN of all that the four stages and what allocates for them read."""
    found = set()
    for room in ("stages", "allocation"):
        for file in (ROOM / room).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute):
                    of = node.value
                    table = getattr(of, "id", getattr(of, "attr", None))
                    if node.attr in COLUMNS.get(table, ()):
                        found.add(f"{table}.{node.attr}")
    return found


def test_every_column_that_is_read_is_here_and_none_beside():
    assert read() == {*SHOWN, *WHO_AND_WHERE}


@pytest.mark.parametrize("column", SHOWN)
def test_what_shows_it_is_there(column):
    shown = SHOWN[column]
    if "::" in shown:
        file, name = shown.split("::")
        assert f"def {name}(" in (HERE / f"{file}.py").read_text(encoding="utf-8")
    elif shown.startswith("s4."):
        assert f'"{shown}"' in (HERE / "test_parameters.py").read_text(encoding="utf-8")
    else:
        cases = {case[0] for module in (test_directions, test_directions_s4) for case in module.CASES}
        assert shown in cases


def test_a_new_column_would_be_found(tmp_path, monkeypatch):
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "s5.py").write_text("def f(o):\n    return o.jobs.checkpoint_bytes\n")
    monkeypatch.setattr("tests.policies.stages.test_variables.ROOM", tmp_path)
    assert read() == {"jobs.checkpoint_bytes"}
