"""Imported before ranks are forked: what the first deal of a sampler compiles or loads is there once."""

from equipoise.live.train.sampler import ShareSampler

_sampler = ShareSampler(
    16, rank=0, ranks=2, global_batch=8, micro_batch=1, shards=4, shuffle=True, drop_last=False, seed=0
)
for _ in _sampler:
    _sampler.finish()
