"""The parts of an attached training job, put together."""

from __future__ import annotations

import contextlib

import numpy as np

from equipoise.live.decide.agreement import Agreement
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.group.group import Group
from equipoise.live.options import Options
from equipoise.live.train.checks import ReplicaCheck
from equipoise.live.train.optimizers import Optimizers, check_parameters
from equipoise.live.train.rounds import RoundMeter
from equipoise.live.train.shares import HeldShare, make_backend
from equipoise.live.train.sync import LocalSteps
from equipoise.live.train.wrapped import Replicated
from equipoise.policies.contract import Policy


class Parts:
    """One attachment's model, optimiser, group of ranks, meter, record, and its share of a device. Collective.

    `problem`: why this rank cannot begin. Raises ExportError, on every rank, when some rank has one.
    """

    def __init__(
        self, wrapper: Replicated, optimizer: Optimizers, policy: Policy | None, options: Options, problem: str | None
    ) -> None:
        self.options = options
        self.wrapper, self.leaves = wrapper, wrapper.leaves()
        check_parameters(wrapper, self.leaves, optimizer, options)
        self.device = next(wrapper.module.parameters()).device
        backend = make_backend(options.share_backend, self.device)
        self.local = LocalSteps(
            wrapper,
            optimizer,
            outer_lr=options.outer_lr,
            outer_momentum=options.outer_momentum,
            measures=options.drift == "measured",
        )
        self.group = Group(
            self.device,
            backend=backend,
            control_timeout_s=options.control_timeout_s,
            problem=problem,
            levels=options.may_step_alone,
            exchanged=list(self.leaves.values()),
        )
        folder = None if options.run_dir is None else options.run_dir / self.group.run
        self.recorder = recorder = Recorder(folder, self.group.rank)
        self.share = HeldShare(backend, lambda why: recorder.event("refused", lever="share", why=why))
        self.share.share = self.group.places[self.group.rank].share
        self.agreement = Agreement(options, policy, self.group, recorder, self.device)
        self.local.near = near = self.group.near
        if self.agreement.leader is not None:
            self.agreement.leader.world.set_near(near, self.group.near_exchange_s)
        self.replicas = ReplicaCheck([] if wrapper.sharded else self.leaves.values())
        self.meter = RoundMeter(
            wrapper,
            self.leaves,
            optimizer,
            self.share,
            accumulation=options.accumulation,
            statistics_every=options.gradients_every if options.mode != "observe" else None,
        )

    def close(self) -> None:
        """Write buffered records and stop the threads."""
        self.agreement.flush(self.meter)
        with contextlib.suppress(RuntimeError):
            self.group.control.gather(np.zeros(1))
        self.agreement.close()
        self.meter.close()
        self.local.close()
        self.recorder.close()
        self.group.control.close()  # so that destroy_process_group can end its threads
