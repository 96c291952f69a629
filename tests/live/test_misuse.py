"""What a script can get wrong when it takes the adapter in: each is one clear line, and nothing waits for ever."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.sampler import ShareSampler  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402


def attached(samples: int, **options: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    runtime = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"policy": "s2", **options})
    runtime.sampler(samples)
    return runtime


def disagreeing(rank: int) -> dict[str, str]:
    """What each rank is told when rank 1 is given something else than rank 0."""
    torch.distributed.init_process_group("gloo")
    found = {}
    for what, (samples, options) in {
        "data": (200 - 50 * rank, {"global_batch": 20}),
        "batch": (200, {"global_batch": 20 - 10 * rank}),
        "decisions": (200, {"global_batch": 20, "decide_every": 10 - 7 * rank}),
        "order": (200, {"global_batch": 20, "seed": rank}),
    }.items():
        try:
            attached(samples, **options)
            found[what] = ""
        except ValueError as error:
            found[what] = str(error)
    attached(200, global_batch=20)  # the channel between the ranks is still in order
    return found


def test_ranks_that_were_given_different_things_say_so_before_the_first_round() -> None:
    """Each deals for itself: with other data or options they would train samples twice, then hang."""
    first, second = live_ranks.run(disagreeing, 2)
    assert first == second
    advice = "; give every rank the whole dataset and the same options"
    assert first["data"] == (f"samples in the dataset differs between ranks: rank 0 has 200, rank 1 has 150{advice}")
    assert first["batch"].startswith("global_batch differs between ranks: rank 0 has 20, rank 1 has 10;")
    assert first["decisions"].startswith("decide_every differs between ranks: rank 0 has 10, rank 1 has 3;")
    assert first["order"].startswith("seed differs between ranks: rank 0 has 0, rank 1 has 1;")


# -- what attach refuses -------------------------------------------------------------------------------------

OPTIONS = {
    "decide_every": (1.5, "1.5 is not allowed; needed: a whole number"),
    "bounds": ({"samples_min": 1}, "{'samples_min': 1} is not allowed; needed: an instance of Bounds"),
    "drift": (-1, '-1 is not allowed; needed: a finite number of at least 0, NaN (unknown), or "measured"'),
    "outer_lr": (float("nan"), "nan is not allowed; needed: greater than 0"),
    "outer_momentum": (1, "1 is not allowed; needed: less than 1"),
    "prometheus_port": (99999, "99999 is not allowed; needed: less than or equal to 65535"),
    "share_backend": ("gpu", "'gpu' is not allowed; needed: 'none', 'duty-cycle', 'green-context' or 'mps'"),
    "allow": ("samples", "'samples' is not allowed; needed: a set of samples, moves, order, interval, share, batch"),
    "batch_max": (10, "10 is not allowed; needed: at least global_batch (20)"),
    "seed": (-1, "-1 is not allowed; needed: greater than or equal to 0"),
    "shuffle": ("no", "'no' is not allowed; needed: a valid boolean"),
    "control_timeout_s": (float("inf"), "inf is not allowed; needed: a finite number"),
    "run_dir": (5, "5 is not allowed; needed: another type"),
    "key": ("secret", "a str is not allowed; needed: bytes"),
}


def refused(rank: int) -> dict[str, str]:
    """What `attach` says to each misuse; empty where it says nothing."""
    from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    parameters = list(model.parameters())
    sgd = torch.optim.SGD(parameters, lr=0.1)
    zero = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)
    tries: dict[str, tuple[Any, dict[str, Any]]] = {
        "list": ([sgd, torch.optim.SGD(parameters[1:])], {}),
        "none": ([], {}),
        "no policy": (sgd, {"policy": 5}),
        "LBFGS": (torch.optim.LBFGS(parameters), {}),
        "averaging": (PostLocalSGDOptimizer(sgd, None), {}),
        "sharded": (zero, {}),
        "sharded, whole state not needed": (zero, {"allow": {"samples", "moves"}}),
        "sharded, observed": (zero, {"mode": "observe"}),
        "part": (torch.optim.SGD(parameters[:1], lr=0.1), {"drift": 0.02}),
        "part, no local steps": (torch.optim.SGD(parameters[:1], lr=0.1), {}),
        "twice": (sgd, {}),
        **{name: (sgd, {name: value}) for name, (value, _) in OPTIONS.items()},
    }
    found = {}
    for what, (optimizer, options) in tries.items():
        runtimes = []
        try:
            for _ in range(1 + (what == "twice")):
                runtimes.append(attach(model, optimizer, **{"policy": "none", "global_batch": 20, **options}))
            found[what] = ""
        except (TypeError, ValueError) as error:
            found[what] = f"{type(error).__name__}: {error}"
        for runtime in runtimes:  # and can be attached again
            runtime.close()
    return found


@pytest.fixture(scope="module")
def sayings() -> dict[str, str]:
    return live_ranks.run(refused, 1)[0]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_not_allowed_is_one_line_with_its_name_and_what_is(
    name: str, sayings: dict[str, str]
) -> None:
    assert sayings[name] == f"ValueError: {name}: {OPTIONS[name][1]}"


def test_an_optimizer_under_which_replicas_would_part_is_refused(sayings: dict[str, str]) -> None:
    assert sayings["list"] == ("ValueError: optimizer: a parameter in two optimizers is not allowed")
    assert sayings["none"] == (
        "TypeError: optimizer: a list is not allowed; needed: one torch.optim.Optimizer or a list of them"
    )
    assert sayings["LBFGS"].startswith("ValueError: optimizer: LBFGS is not allowed, it depends on the loss")
    assert sayings["averaging"].endswith("it averages replicas itself; pass the wrapped one")
    assert sayings["sharded"].endswith("one with full state, or an `allow` without interval")
    assert sayings["part"].startswith(
        "ValueError: drift: 0.02 is not allowed, the optimizer does not have bias (of 1);"
    )
    for allowed in ("sharded, whole state not needed", "sharded, observed", "part, no local steps"):
        assert sayings[allowed] == ""


def test_what_is_no_policy_is_one_line(sayings: dict[str, str]) -> None:
    assert sayings["no policy"] == (
        "TypeError: policy: 5 is not allowed; needed: a file, a Policy, or stages such as 's1+s2'"
    )


def test_a_model_is_attached_once(sayings: dict[str, str]) -> None:
    """Otherwise its gradients are weighted twice; after `close` it may be attached again."""
    assert sayings["twice"] == (
        "ValueError: model: already attached, its gradients would be weighted twice; close() its runtime first"
    )


def with_a_parameter_of_its_own(rank: int) -> str:
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    own = torch.nn.Parameter(torch.ones(1))
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        attach(model, torch.optim.SGD([*model.parameters(), own], lr=0.1), "none", global_batch=20)
    return said.getvalue()


def test_a_parameter_that_the_wrapper_does_not_exchange_is_told() -> None:
    (said,) = live_ranks.run(with_a_parameter_of_its_own, 1)
    assert said == (
        "equipoise: the wrapped model does not exchange 1 of the optimizer's parameters; "
        "their gradients are not weighted\n"
    )


def without_a_file(rank: int) -> str:
    torch.distributed.init_process_group("gloo")
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        attached(200, global_batch=20, policy="nowhere.yaml")
    return said.getvalue()


@pytest.mark.long
def test_a_policy_file_that_is_not_there_is_told_once_and_not_by_every_rank() -> None:
    first, second = live_ranks.run(without_a_file, 2)
    assert first == ("equipoise: nowhere.yaml: No such file or directory; training continues without a policy\n")
    assert second == ""


def sampler(**options: Any) -> ShareSampler:
    return ShareSampler(50, rank=0, ranks=1, global_batch=10, **options)


def epoch(dealt: ShareSampler, *, trained: bool = True) -> list[int]:
    read = []
    for batch in dealt:
        read += batch
        if trained:
            dealt.finish()
    return read


def test_a_script_that_forgets_step_is_told_at_the_next_epoch() -> None:
    dealt = sampler()
    epoch(dealt, trained=False)
    with pytest.warns(UserWarning, match=r"the last 5 batches of an epoch were read without runtime\.step\(\)"):
        epoch(dealt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epoch(dealt)  # that one was preceded by steps
        next(iter(dealt))  # an epoch that is broken off
        epoch(dealt)


def test_a_job_that_resumes_names_its_epoch_and_gets_the_order_that_it_would_have_had() -> None:
    whole, resumed = sampler(seed=3), sampler(seed=3)
    orders = [epoch(whole) for _ in range(4)]
    resumed.set_epoch(2)
    assert [epoch(resumed), epoch(resumed)] == orders[2:]
    assert (whole.epoch, resumed.epoch) == (3, 3)
    assert orders[2] != orders[3]
    whole.set_epoch(4)  # what a script that always sets it says: nothing changes
    untouched = sampler(seed=3)
    untouched.set_epoch(4)
    assert epoch(whole) == epoch(untouched)


def refused_share(rank: int, folder: str) -> tuple[int, list[float]]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime = attach(model, optimizer, "none", global_batch=10, run_dir=folder, share_backend="duty-cycle")
    asked: list[float] = []

    class Refusing(type(runtime._parts.share.backend)):  # type: ignore[misc]
        """Its context cannot be entered, as a driver may decide."""

        def begin(self) -> None:
            """Fails until the whole device is asked for."""
            if not asked:
                raise RuntimeError("the driver says no")

        def set(self, share: float) -> None:
            """Notes what is asked for."""
            asked.append(share)

    runtime._parts.share.backend = Refusing()
    data = TensorDataset(torch.randn(40, 2), torch.randn(40, 1))
    for x, y in DataLoader(data, batch_sampler=runtime.sampler(data)):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
    runtime.close()
    return runtime.round, asked


def test_a_share_that_the_driver_refuses_does_not_end_training(tmp_path: Path) -> None:
    ((rounds, asked),) = live_ranks.run(refused_share, 1, str(tmp_path))
    assert (rounds, asked) == (4, [1.0])
    assert "the driver says no" in (live_ranks.record(tmp_path) / "rounds-0.jsonl").read_text()
