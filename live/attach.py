"""Puts a policy into a real data-parallel training job: three lines in the script.

runtime = equipoise.attach(model, optimizer, policy="policy.yaml", global_batch=512)
loader = DataLoader(dataset, batch_sampler=runtime.sampler(dataset))
...
    runtime.step()
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from live import regroup
from live.options import Options
from live.runtime import Runtime
from policies import PolicyError, make_policy
from policies.contract import Policy
from policies.export import ExportError, load_policy


def attach(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    policy: Policy | str | Path | Sequence[Any] | None = None,
    *,
    global_batch: int,
    key: bytes | None = None,
    **options: Any,
) -> Runtime:
    """Attach `policy` to a model wrapped in DistributedDataParallel. Collective.

    `policy`: an exported file, a policy, or stages as in a scenario ("s1+s2"); none: the file that
    `EQUIPOISE_POLICY` names, else policy.yaml. A file that is damaged, or not signed with `key`, is reported
    and ignored: training runs as without a policy. Options, all by name:

    global_batch        samples per round over all ranks; a round is one batch of the loader
    mode                "observe" (nothing is decided), "advise" (decisions are logged), "act"
    micro_batch         granularity of shares, in samples
    accumulation        batches per optimiser step; call `step()` after each batch
    loss_reduction      "mean": the loss is the mean over the rank's batch; "sum": it is their sum, or is
                        normalised over all ranks by the script
    decide_every        rounds between decisions; statistics_every: optimiser steps between measurements of
                        gradient norms and noise scale
    decision_budget_s   what a decision may hold up training; a later one is ignored. warm_up_budget_s: what
                        the policy may take to compile before the first round
    allow, bounds       levers a policy may use ("samples", "moves", "order", "interval", "share", "resize"),
                        and hard bounds (`live.options.Bounds`)
    drift               efficiency lost per extra local step (kappa_d); unknown: the interval is left alone
    batch_reference     batch at which the statistical efficiency is 1 (none: global_batch)
    outer_lr, outer_momentum   outer optimiser on the mean of local steps (1 and 0: plain averaging)
    samples_target      samples to train in all, for progress; sample_bytes: size of one
    shards, shuffle, seed      how an epoch is cut, and its order
    run_dir             folder for the record of the run; none: nothing is written
    prometheus_port, mlflow, nvml   further telemetry
    share_backend       "none", "duty-cycle", "green-context", "mps"
    state               further objects with state_dict, given to members that join (schedulers, scalers)
    control_timeout_s   longest wait for the other ranks at a decision

    Raises TypeError for a model that is not wrapped, ValueError for an option that is not allowed.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError("attach needs a model wrapped in torch.nn.parallel.DistributedDataParallel")
    if model.static_graph:
        raise ValueError("static_graph=True cannot change the synchronisation interval; wrap without it")
    known = {f.name for f in dataclasses.fields(Options)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"attach: unknown option {unknown[0]!r}; allowed: {', '.join(sorted(known))}")
    if options.get("run_dir") is not None:
        options["run_dir"] = Path(options["run_dir"])
    settings = Options(global_batch=global_batch, **options)
    chosen = os.environ.get("EQUIPOISE_POLICY", "policy.yaml") if policy is None else policy
    return Runtime(model, optimizer, _policy(chosen, key), settings, regroup.current())


def _policy(policy: Policy | str | Path | Sequence[Any], key: bytes | None) -> Policy | None:
    if isinstance(policy, Policy):
        return policy
    is_file = isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith((".yaml", ".yml")))
    try:
        return load_policy(Path(str(policy)), key=key).policy if is_file else make_policy(policy)  # type: ignore[arg-type]
    except (ExportError, PolicyError, OSError) as error:
        if not is_file:
            raise
        if dist.get_rank() == 0:  # the rank that decides; all the others would say the same
            why = f"{policy}: {error.strerror}" if isinstance(error, OSError) else error
            print(f"equipoise: {why}; training goes on without a policy", file=sys.stderr)
        return None
