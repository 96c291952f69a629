"""S321 to S323 on shared GPUs: what more of one is worth, quanta, MIG slices and turns of equal length."""

import itertools

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.kernels.slices import EIGHTHS, SEVENTHS, fit_together, is_slice, nearest_slices, share_left
from equipoise.policies.registry import make_policy, make_stage
from equipoise.policies.stages.virtual import capability
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from tests.oracles import policies as naive
from tests.policies.observations import change, shared_gpu
from tests.scenarios import model, scenario


@pytest.mark.parametrize("seed", range(40))
def test_slices_are_the_nearest_that_fit_together(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    wanted, least = rng.uniform(0.02, 1.0, n), rng.choice([0.0, 0.0, 0.1, 0.3], n)
    room = [(7, 8), (7, 8), (4, 4), (3, 4), (6, 6)][rng.integers(5)]
    found = nearest_slices(wanted, least, *room, SEVENTHS, EIGHTHS)
    best = naive.nearest_slices(wanted, least, *room)
    if best is None:
        assert (found == -1).all()
    else:
        cost = (np.log(SEVENTHS[found] / 7 / wanted) ** 2).sum()
        assert cost == pytest.approx(best[0], abs=1e-9)


def test_what_is_a_slice():
    assert [is_slice(f) for f in (0.14, 2 / 7, 0.43, 0.57, 1.0)] == [True] * 5
    assert not any(is_slice(f) for f in (0.5, 0.25, 5 / 7, 0.05))


@pytest.mark.parametrize(
    "held", [h for n in range(5) for h in itertools.combinations_with_replacement((1, 2, 3, 4), n)]
)
def test_mig_profiles_fit_where_the_device_has_places_for_them(held):
    """Where they may begin among the 8 memory slices: 1g at 0..6, 2g at 0, 2, 4, 3g at 0, 4, 4g and 7g at 0."""
    begins = {1: range(7), 2: (0, 2, 4), 3: (0, 4), 4: (0,), 7: (0,)}
    size = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}

    def placed(profiles):
        return any(
            sum(size[p] for p in profiles)
            == len({s for p, b in zip(profiles, at, strict=True) for s in range(b, b + size[p])})
            and sum(profiles) <= 7
            for at in itertools.product(*(begins[p] for p in profiles))
        )

    shares = np.array(held) / 7
    assert fit_together(shares) == placed(held)
    if placed(held):
        left = share_left(shares)
        for p in (1, 2, 3, 4, 7):
            if p / 7 <= left + 1e-9:
                assert placed((*held, p)), f"{p}g does not fit beside {held}"
        assert left > 0 or not any(placed((*held, p)) for p in (1, 2, 3, 4))


def test_no_gpu_is_cut_into_what_it_cannot_be_cut_into():
    """Two 3g take all the memory of an A100: the 1g that asks for the seventh left waits, or goes elsewhere."""
    jobs = [{"name": f"j{k}", "gpus": 1, "gpu_share": f / 7, "duration": 100.0} for k, f in enumerate((3, 3, 1))]
    node = {"name": "cut", "gpus": 1, "accelerator": "a100_sxm_80gb", "sharing": "mig"}
    for count, ends in ((1, [100.0, 100.0, 200.0]), (2, [100.0, 100.0, 100.0])):
        case = scenario(cluster={"nodes": [{**node, "count": count}]}, workload={"jobs": jobs})
        for policy in ("fifo-greedy", "s4", "s4(mode=optimal)"):
            made = run(case, policy=make_policy(policy), seed=0)
            assert sorted(made.jobs["completion_s"].tolist()) == pytest.approx(ends), policy


# -- S321: E / P ---------------------------------------------------------------------------------------------------


def together(**columns):
    """Two jobs that share GPU 0 by halves: steps of 2 s, nothing else."""
    o = shared_gpu([0.5, 0.5], [2.0, 2.0])
    o = change(o, "workers", share_kappa=columns.pop("share_kappa", np.full(2, np.inf)))
    return change(o, "jobs", **{"throughput_samples_per_s": np.full(2, 4.0), **columns})


def test_s321_who_trains_in_proportion_to_its_share_has_1():
    o = together()
    assert capability(o, o.workers.gpu_share) == pytest.approx([1.0, 1.0])


def test_s321_an_exchange_makes_more_share_worth_less():
    """8 samples in 2 s of computing and 6 s of exchange: slope 8 / 8^2 * 2 / 0.5, whole GPU 8 / (1 + 6)."""
    o = together(throughput_samples_per_s=[4.0, 1.0])
    assert capability(o, o.workers.gpu_share) == pytest.approx([1.0, 0.5 * 7 / 8])


def test_s321_waits_are_no_exchange():
    """Of 8 s a worker waits for 2 s and its input for 1 s, so that 3 s are the exchange's."""
    o = change(together(throughput_samples_per_s=[4.0, 1.0]), "workers", wait_s=[0.0, 2.0], input_stall_s=[0.0, 1.0])
    assert capability(o, o.workers.gpu_share)[1] == pytest.approx(8 / 5**2 * 2 / 0.5 / (8 / (1 + 3)))


def test_s321_a_flat_curve_makes_more_share_worth_less():
    o = together(share_kappa=[np.inf, 0.25])  # speed at a half is 1.25 * 0.5 / 0.75; its slope over it 0.25 / 0.375
    slope = 8 / 2.0 * 0.25 / 0.375
    assert capability(o, o.workers.gpu_share)[1] == pytest.approx(slope / (8 / 2.0 / (1.25 * 0.5 / 0.75)))


def test_s322_the_share_goes_where_more_is_worth_more():
    o = together(throughput_samples_per_s=[4.0, 1.0])
    plan, _ = make_stage("s3").refine(o, UNCHANGED, {})
    assert plan.gpu_share[0] > 0.55
    assert plan.gpu_share[1] < 0.45


# -- S323: what the device can do ----------------------------------------------------------------------------------


def test_s323_slices_where_gpus_are_cut_by_mig_if_they_pay():
    o = together(throughput_samples_per_s=[4.0, 0.5], service_s=[1e5, 100.0], restart_s=[60.0, 60.0])
    o = change(o, "gpus", mig=[True], share_quantum=[1 / 7])
    o = change(o, "workers", gpu_share=[3 / 7, 3 / 7])
    o = change(o, "gpus", share_free=[1 / 7])
    plan, _ = make_stage("s3").refine(o, UNCHANGED, {})
    assert check(plan, o) is None
    assert plan.gpu_share == pytest.approx([4 / 7, 3 / 7]) or plan.gpu_share == pytest.approx([4 / 7, 2 / 7])
    plan, _ = make_stage("s3").refine(change(o, "jobs", service_s=[100.0, 100.0]), UNCHANGED, {})
    assert plan.gpu_share is None, "another slice costs a restart, which 100 s do not win back"


def test_s323_leaves_gpus_alone_that_give_equal_turns():
    o = change(together(throughput_samples_per_s=[4.0, 1.0]), "gpus", share_quantum=[1.0])
    assert make_stage("s3").refine(o, UNCHANGED, {})[0].gpu_share is None


# -- the simulator -------------------------------------------------------------------------------------------------


def pair(sharing, accelerator="a100_sxm_80gb", share=0.43, steps=(400, 800), exchange=0.0, **job):
    models = {"m": model(parameters=1e6, memory={"activation_per_sample": 1e6})}
    models["x"] = model(exchange={"alpha": exchange, "rate": 1e10})
    jobs = [
        {"name": f"j{k}", "gpus": 1, "gpu_share": share, "model": "m", "steps": n, "global_batch": 4, **job}
        for k, n in enumerate(steps)
    ]
    return scenario(
        cluster={"nodes": [{"name": "n", "gpus": 1, "accelerator": accelerator, "sharing": sharing}]},
        workload={"models": models, "jobs": jobs},
        decide={"every_steps": 10},
        restart={"initialisation": 2.0},
    )


def test_another_slice_costs_a_restart_in_both_time_advances():
    spec = pair("mig", steps=(400, 4000))
    both = [run(spec, policy=make_policy("s3+fifo"), seed=0, event_by_event=slow).jobs for slow in (False, True)]
    assert both[0]["completion_s"].tolist() == pytest.approx(both[1]["completion_s"].tolist(), rel=1e-9)
    alone = both[0]["completion_s"][1]
    assert alone > 4000 * 0.04
    assert alone < 0.7 * 4000 * 0.04 / 0.43, "it has taken the whole GPU once the other was gone"


def refused(spec):
    from equipoise.sim.loading.file import from_mapping

    raw = {"schema_version": 1, "name": "x", **spec}
    with pytest.raises(InputError) as error:
        from_mapping(raw)
    return str(error.value)


@pytest.mark.parametrize(
    ("node", "share", "text"),
    [
        ({"accelerator": "l40s", "sharing": "mig"}, 0.5, "cluster.nodes.0.sharing: l40s has no MIG"),
        ({"accelerator": "h100_sxm", "sharing": "mig"}, 0.5, "jobs.0.gpu_share: 0.5 of a GPU"),
        ({"accelerator": "h100_sxm", "sharing": "vgpu"}, 0.5, "sharing"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(node, share, text):
    cluster = {"nodes": [{"name": "n", "gpus": 1, **node}]}
    jobs = [{"gpus": 1, "gpu_share": share, "model": "m", "steps": 1, "global_batch": 1}]
    assert text in refused({"cluster": cluster, "workload": {"models": {"m": model()}, "jobs": jobs}})


def test_the_shares_that_a_refusal_names_are_taken():
    from equipoise.sim.loading.file import from_mapping

    cluster = {"nodes": [{"name": "n", "accelerator": "h100_sxm", "sharing": "mig"}]}
    case = {"cluster": cluster, "workload": {"jobs": [{"gpu_share": 0.5, "duration": 1}]}}
    for share in refused(case).rpartition(", as ")[2].split(", "):
        jobs = [{"gpu_share": float(share), "duration": 1}]
        from_mapping({"schema_version": 1, "name": "x", **case, "workload": {"jobs": jobs}})
