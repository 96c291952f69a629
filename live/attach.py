"""Puts a policy into a real data-parallel training job: three lines in the script.

runtime = equipoise.attach(model, optimizer, policy="policy.yaml", global_batch=512)
loader = DataLoader(dataset, batch_sampler=runtime.sampler(dataset))
...
    runtime.step()
"""

from __future__ import annotations

import dataclasses
import os
import reprlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from equipoise.live.options import Options
from equipoise.live.runtime import Runtime
from equipoise.live.train.optimizers import optimizers_of
from equipoise.live.train.weighting import is_weighted
from equipoise.live.train.wrapped import wrapped
from equipoise.live.unsupported import check_exchange, check_model
from equipoise.policies.contract import Policy
from equipoise.policies.record.export import ExportError, load_policy
from equipoise.policies.registry import make_policy


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    policy: Policy | str | Path | Sequence[Any] | None = None,
    *,
    global_batch: int,
    key: bytes | None = None,
    **options: Any,
) -> Runtime:
    """Attach `policy` to a model under DistributedDataParallel or `fully_shard`. Collective.

    `optimizer`: one, or a list of optimizers that all step in the same rounds.

    `policy`: an exported file, a policy, or stages as in a scenario ("s1+s2"); default: the file that
    `EQUIPOISE_POLICY` names, else policy.yaml. A file that is missing, damaged, or not signed with `key`, is
    reported and ignored: training runs as without a policy, unless `strict`. Options (keyword only):

    global_batch        samples per round over all ranks; a round is one batch of the loader
    plugins             accept stages of installed packages in a policy file; their code then runs
    strict              a policy file that cannot be used on any one rank is an error on every rank
    mode                "observe" (nothing is decided), "advise" (decisions are logged), "act"
    micro_batch         granularity of shares, in samples
    accumulation        batches per optimiser step; call `step()` after each batch
    loss_reduction      "mean": the loss is the mean over the rank's batch; "sum": it is their sum, or is
                        normalised over all ranks by the script (further terms must then come
                        through the model's outputs, or a rank without samples raises ValueError)
    weighted            the script gives every batch a weight by `runtime.weigh`: tokens, where the loss is a mean
                        over tokens
    decide_every        rounds between decisions (10, and 5 after a change; with "observe", 50 between exchanges of
                        measurements); after the first ten the policy is asked when a rank's speed changes, else as
                        seldom as keeps decisions at 0.2 % of training; statistics_every: optimiser steps between
                        measurements of gradient norms and noise scale (10 with `drift` or `batch_max`, else 50)
    delay_rounds        rounds trained while a decision is made, which then acts that many rounds later and delays
                        nothing if it takes no longer (0: training waits for it); less than decide_every
    decision_budget_s   longest time that training waits for a decision; a later one is ignored. warm_up_budget_s:
                        longest time that the policy may compile before the first round
    allow, bounds       levers a policy may use ("samples", "moves", "order", "interval", "share", "batch"), and hard
                        bounds (`live.options.Bounds`)
    drift               efficiency lost per extra local step (kappa_d); "measured": from how far replicas
                        diverge, beginning with two local steps; NaN (unknown): the interval is not changed
    batch_reference     batch at which the statistical efficiency is 1 (default: global_batch)
    batch_max           largest global batch that a policy may choose, `batch_reference` being the smallest (default:
                        the batch is not changed)
    learning_rate       how it follows the batch, in every parameter group, on top of the script's scheduler:
                        "adascale", "sqrt", "linear", "none", or "script": the script scales it by
                        `runtime.global_batch` itself (default: "sqrt" for optimizers like Adam, else "adascale")
    outer_lr, outer_momentum   outer optimiser on the mean of local steps (1 and 0: plain averaging)
    samples_target      total samples to train, for progress; sample_bytes: size of one
    drop_last           leave out the samples at the end of an epoch that do not fill a global batch
    shards, shuffle, seed      how an epoch is cut into shards, and its order
    run_dir             folder for the records of runs, each in a folder of its own (named `runtime.run`);
                        default: nothing is written
    prometheus_port     rank 0 serves metrics there, on the interface prometheus_host (127.0.0.1)
    nvml                read the GPU's clock, power and temperature
    share_backend       "none", "duty-cycle", "green-context", "mps"
    control_timeout_s   longest wait for the other ranks at a decision (s)

    Raises TypeError for a model that is not wrapped or an object that is no optimizer, ValueError for an option or
    an optimizer that is not allowed, and for a model that is already attached; ExportError, a ValueError, for
    a file that cannot be used if `strict`.
    """
    check_model(model)
    wrapper = wrapped(model)
    if is_weighted(wrapper.module):
        twice = "its gradients would be weighted twice; close() its runtime first"
        raise ValueError(f"model: already attached, {twice}")
    if key is not None and not isinstance(key, bytes):
        raise ValueError(f"key: a {type(key).__name__} is not allowed; needed: bytes")
    known = {f.name for f in dataclasses.fields(Options)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"attach: unknown option {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
    settings = Options(global_batch=global_batch, **options)
    settings = check_exchange(wrapper, settings)
    optimizers = optimizers_of(optimizer, settings)
    settings = dataclasses.replace(settings, learning_rate=settings.learning_rate or optimizers.rate_rule)
    chosen = os.environ.get("EQUIPOISE_POLICY", "policy.yaml") if policy is None else policy
    found, problem = _policy(chosen, key, settings.plugins)
    if problem is not None and not settings.strict and dist.get_rank() == 0:  # the rank that decides
        print(f"equipoise: {problem}; training continues without a policy", file=sys.stderr)
    return Runtime(wrapper, optimizers, found, settings, problem if settings.strict else None)


def _policy(
    policy: Policy | str | Path | Sequence[Any], key: bytes | None, plugins: bool
) -> tuple[Policy | None, str | None]:
    """The policy, or None and the problem with its file.

    Raises TypeError for an object that is not a policy, PolicyError for stages that do not exist.
    """
    if isinstance(policy, Policy):
        return policy, None
    if not isinstance(policy, str | Path | Sequence) or isinstance(policy, bytes):
        raise TypeError(
            f"policy: {reprlib.repr(policy)} is not allowed; needed: a file, a Policy, or stages such as 's1+s2'"
        )
    is_file = isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith((".yaml", ".yml")))
    if not is_file:
        return make_policy(policy), None  # type: ignore[arg-type]  # no path is left
    try:
        return load_policy(Path(str(policy)), key=key, plugins=plugins).policy, None
    except OSError as error:
        return None, f"{policy}: {error.strerror}"
    except ExportError as error:
        return None, str(error)
