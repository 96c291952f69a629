"""A training script over file shards, as a user writes it; computing is a wait per sample."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def number_of(sample: Mapping[str, bytes]) -> int:
    return int(sample["id"])


def train(rank: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """One rank. `options`: roots and sample_s by rank, folder, policy, batch, ...; see the defaults below."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    from equipoise.live.attach import attach
    from equipoise.live.data.files import ShardDataset

    given = {
        "policy": "none",
        "batch": 40,
        "epochs": 1,
        "cache_bytes": 1e9,
        "prefetch": 2,
        "shuffle": False,
        "allow": None,
        "decide_every": 3,
        "workers": 0,
        "attach": {},
        **options,
    }
    os.environ["EQUIPOISE_HOST"] = f"host-{rank}"
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    folder = Path(given["folder"])
    data = ShardDataset(
        given["roots"][rank],
        cache=folder / f"cache-{rank}",
        cache_bytes=given["cache_bytes"],
        prefetch=given["prefetch"],
        decode=number_of,
    )
    settings = {"run_dir": folder / "run", "warm_up_budget_s": 600.0, "decision_budget_s": 5.0, **given["attach"]}
    if given["allow"] is not None:
        settings["allow"] = frozenset(given["allow"])
    runtime = attach(
        model,
        optimizer,
        given["policy"],
        global_batch=given["batch"],
        decide_every=given["decide_every"],
        shuffle=given["shuffle"],
        **settings,
    )
    sampler = runtime.sampler(data)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=given["workers"])
    log: list[tuple[Any, ...]] = []
    torch.distributed.barrier()  # rank 0 may still compile what its policy calls
    began_s = time.monotonic()
    for epoch in runtime.epochs(given["epochs"]):
        for ids in loader:
            current = sampler.current()
            assert current is not None
            mine = ids[: len(current.indices)].tolist()
            x = 1.0 - 2.0 * (ids.double()[:, None] % 2)  # gradients that stay as they are: all are sound
            loss = ((model(x) - 2 * x) ** 2).mean()
            time.sleep(given["sample_s"][rank] * len(mine))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.append((runtime.round, epoch, mine))
            runtime.step()
    took_s = time.monotonic() - began_s
    runtime.close()
    return {"log": log, "took_s": took_s, "shares": runtime.shares}
