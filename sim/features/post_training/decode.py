"""How long replicas take to generate responses: one iteration's time, drawn lengths, and continuous batching.

An iteration gives each response in progress one token. It reads the weights (of experts, those that some response
uses) or computes, whichever is longer, reads the cache of keys and values, and pays the host per layer and response
and two all-reduces a layer (roofline: Williams et al. 2009; batching: Yu et al. 2022, Orca; Kwon et al. 2023, vLLM).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.observation import Floats
from equipoise.sim.features.post_training.section import Loop, Response
from equipoise.sim.llm.hardware import AcceleratorRates
from equipoise.sim.llm.shape import Transformer
from equipoise.sim.randomness import stream

MEMORY, PRODUCTS = 0.60, 0.48
"""Shares of the memory's and of the products' peak rate that decoding reaches."""
LAYER_S, RESPONSE_S, ALL_REDUCE_S = 75e-6, 25e-6, 31e-6
"""Time of the host per layer and per response, and of one small all-reduce. These five were set as 0.75, 0.6, 60, 20
and 25 us from what such numbers usually are, then scaled alike by one factor, 1.25, to the rollouts of four models
(NVIDIA NeMo-RL 0.3, table 1): `tests/features/post_training/runs.py`."""
CACHE = 0.85
"""Share of a GPU's memory for weights and the cache of keys and values."""
DRAWN = 16
"""Steps whose lengths are drawn; later steps repeat them."""


class Decode(NamedTuple):
    """Seconds of an iteration of one replica with n responses: fixed + n x response + the cache's tokens x token, and
    the longer of reading weights (dense, and of experts the part that n responses use) and n x product."""

    fixed_s: float
    response_s: float
    token_s: float
    dense_s: float
    experts_s: float
    used: float  # of the experts, by one response
    product_s: float
    slots: int  # responses at once; 0: the weights and the longest response do not fit


def decode_of(shape: Transformer, machine: AcceleratorRates, loop: Loop) -> Decode:
    """The replicas of a loop."""
    ranks = loop.rollout.tensor
    rate, flop = MEMORY * machine.memory_bytes_per_s * ranks, shape.forward_flop_per_token()
    latent = shape.latent
    width = 2 * shape.key_value_width if latent is None else latent.key_value_rank + latent.rope_size
    cached = 2.0 * width * (shape.layers - shape.linear_layers)
    experts = 2.0 * shape.moe_layers * shape.experts * shape.feed_forward_parameters(shape.expert_ffn)
    weights = 2.0 * shape.parameters
    room = CACHE * machine.memory_bytes * ranks - weights
    held, longest = (cached * (loop.prompt_tokens + tokens) for tokens in (loop.response.mean, loop.response.most))
    return Decode(
        fixed_s=shape.layers * (LAYER_S + (2 * ALL_REDUCE_S if ranks > 1 else 0.0)),
        response_s=RESPONSE_S,
        token_s=cached / rate,
        dense_s=(weights - experts - 2.0 * shape.embedding_parameters) / rate,
        experts_s=experts / rate,
        used=shape.top_k / shape.experts if shape.experts else 0.0,
        product_s=(flop.projections + flop.feed_forward + flop.head) / (PRODUCTS * machine.flop_per_s * ranks),
        slots=min(loop.rollout.slots, int(room / held)) if room >= longest else 0,
    )


def lengths(response: Response, count: int, seed: int, name: str) -> Floats:
    """Drawn tokens of `count` responses, (count,), whole."""
    sigma = math.sqrt(math.log1p(response.cov**2))
    low, high = math.log(response.mean) - 1.0, math.log(response.mean) + 40.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (low, middle) if _mean_cut(middle, sigma, response.most) > response.mean else (middle, high)
    drawn = np.exp(low + sigma * stream(seed, name).standard_normal(count))
    whole: Floats = np.rint(np.clip(drawn, 1.0, float(response.most)))
    return whole


def _mean_cut(mu: float, sigma: float, most: float) -> float:
    """Mean of a log-normal number cut at `most`."""
    if sigma == 0.0:
        return min(math.exp(min(mu, 300.0)), most)
    at = (math.log(most) - mu) / sigma
    return math.exp(min(mu + sigma * sigma / 2.0, 300.0)) * float(ndtr(at - sigma)) + most * float(ndtr(-at))


def tool_waits_s(loop: Loop, count: int, seed: int, name: str) -> Floats:
    """How long each of `count` responses waits for tools, (count,)."""
    calls = loop.rollout.tool_calls
    waited = stream(seed, f"{name}:tools").standard_gamma(calls, count) if calls else np.zeros(count)
    return np.asarray(loop.rollout.tool_time * waited)


def done_s(loop: Loop, decode: Decode, tokens: Floats, tools_s: Floats) -> tuple[Floats, Floats]:
    """When each response is complete (n,), and when each replica has completed all of its own (replicas,).

    Response k goes to replica k modulo their number, which takes them in order.
    """
    replicas = loop.rollout_gpus // loop.rollout.tensor
    done, ends = np.empty(tokens.size), np.zeros(replicas)
    for k in range(min(replicas, tokens.size)):
        own = np.ascontiguousarray(tokens[k::replicas])
        out, room = np.empty(own.size), np.empty((3, max(1, decode.slots)))
        _generate(own, loop.prompt_tokens, np.array(decode[:-1]), room, out)
        done[k::replicas] = out + np.arange(1, own.size + 1) * loop.prompt_tokens * decode.product_s
        done[k::replicas] += tools_s[k::replicas]
        ends[k] = done[k::replicas].max()
    return done, ends


def alone_s(decode: Decode, prompt: int, tokens: float) -> float:
    """How long a response takes that no other shares its replica with: the least that any rollout takes."""
    each_s = decode.fixed_s + decode.response_s + max(decode.dense_s + decode.experts_s * decode.used, decode.product_s)
    return tokens * (each_s + decode.token_s * (prompt + (tokens + 1.0) / 2.0))


@jit_in_place
def _generate(lengths: Floats, prompt: int, decode: Floats, room: Floats, done_s: Floats) -> None:
    """When each response is complete, into (n,); room (3, slots): the last token, first token and number of each."""
    count, begun, base, now_s, held = 0, 0, 0.0, 0.0, 0.0
    while True:
        while count < room.shape[1] and begun < lengths.size:
            room[0, count], room[1, count], room[2, count] = base + lengths[begun], base, begun
            count, begun, held = count + 1, begun + 1, held + prompt
        if count == 0:
            return
        first = room[0, 0]
        for k in range(1, count):
            first = min(first, room[0, k])
        tokens = first - base
        weights_s = decode[3] + decode[4] * (1.0 - (1.0 - decode[5]) ** count)
        each_s = decode[0] + decode[1] * count + max(weights_s, decode[6] * count)
        now_s += tokens * each_s + decode[2] * (held * tokens + count * tokens * (tokens + 1.0) / 2.0)
        held += count * tokens
        base = first
        k = 0
        while k < count:
            if room[0, k] > first:
                k += 1
                continue
            done_s[int(room[2, k])] = now_s
            held -= prompt + first - room[1, k]
            count -= 1
            room[0, k], room[1, k], room[2, k] = room[0, count], room[1, count], room[2, count]
