"""The section `post_training`: loops that roll out responses with a model, score them, and train the model on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from equipoise.sim.scenario.units import BytesPerS, Count, Float, Int, Positive, Seconds, Section

Natural = Annotated[Int, Field(ge=0)]
RESPONSES_MOST = 1_000_000
"""Of a step; each is drawn and timed by itself."""


class Response(Section):
    """Tokens of a response: log-normal, cut at the longest. The mean is of what is left after the cut."""

    mean: Positive  # mean number of tokens
    cov: Annotated[Float, Field(ge=0, le=5)] = 0.8  # coefficient of variation before the cut: how long the tail is
    most: Count = 4096  # limit at which a response is cut


class Rollout(Section):
    """Replicas of the model that generate responses, each on some GPUs of a node."""

    gpus: Count | None = None  # GPUs that only roll out; none: colocated, all GPUs roll out and train in turn
    tensor: Count = 1  # GPUs of a replica
    # replicas go on with the next step's responses while others complete this one's; needs `behind`
    stream: bool = False
    slots: Annotated[Int, Field(ge=1, le=4096)] = 256  # most responses that a replica generates at once
    tool_calls: Annotated[Float, Field(ge=0)] = 0.0  # calls of tools per response, in the mean
    tool_time: Seconds = 0.0  # time of a call in the mean (exponential), during which the response waits


class Handover(Section):
    """New weights on their way from the trainers to the replicas."""

    rate: BytesPerS = 14e9  # rate for all weights together; never more than the trainers' nodes can send
    fixed: Seconds = 4.0  # in addition, the replicas stop, reshard and start again


class Evaluation(Section):
    """Responses that are generated and not trained on."""

    every: Natural = 0  # steps between two evaluations; 0: none
    responses: Count = 256  # responses of an evaluation, as long as those of training


class Loop(Section):
    """A model that is trained on its own responses (GRPO, PPO), or on given ones (DPO, supervised fine-tuning)."""

    name: Annotated[str, Field(min_length=1)] = "post-training"  # name of the loop and of its job
    # grpo, ppo: responses are rolled out; dpo: given pairs, scored by a reference; sft: given responses
    algorithm: Literal["grpo", "ppo", "dpo", "sft"] = "grpo"
    model: str  # a name in workload.models, with a `transformer` section: its layout is that of the trainers
    gpus: Count  # GPUs for rollouts and training together
    arrival: Seconds = 0.0  # when its job is submitted
    priority: Positive = 1.0  # priority of its job
    steps: Count = 100  # steps, each of a batch of responses
    prompts: Count = 64  # prompts of a step
    samples: Count = 16  # responses per prompt
    updates: Count = 1  # updates of the weights per step
    prompt_tokens: Natural = 150  # tokens of a prompt
    response: Response
    rollout: Rollout = Rollout.model_construct()
    # steps by which rollouts may be ahead of training, with older weights; 0: synchronous. Needs `rollout.gpus`
    behind: Annotated[Int, Field(ge=0, le=64)] = 0
    reference: bool | None = None  # a frozen copy scores each response; none: yes, but for sft
    log_probs: bool | None = None  # the trainers score each response again before training; none: for grpo and ppo
    reward: str | None = None  # a model of workload.models that scores each response; none: by rule
    critic: str | None = None  # ppo: a model of workload.models that scores, and is trained; none: one like `model`
    adapter: Literal["none", "lora", "qlora"] = "none"  # what is trained: all weights, or adapters beside frozen ones
    handover: Handover = Handover.model_construct()
    evaluation: Evaluation = Evaluation.model_construct()
    other: Seconds = 3.0  # rest of a step: advantages, data, logs
    # how much longer training and scoring take than the same step of pre-training; none: as measured (dense, experts)
    longer: Positive | None = None

    @property
    def generates(self) -> bool:
        """Whether responses are rolled out."""
        return self.algorithm in ("grpo", "ppo")

    @property
    def colocated(self) -> bool:
        """Whether all GPUs roll out and train in turn."""
        return self.generates and self.rollout.gpus is None

    @property
    def rollout_gpus(self) -> int:
        """GPUs that roll out."""
        return 0 if not self.generates else self.gpus if self.rollout.gpus is None else self.rollout.gpus

    @property
    def trainer_gpus(self) -> int:
        """GPUs that train."""
        return self.gpus if self.colocated else self.gpus - self.rollout_gpus

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return self.prompts * self.samples

    @property
    def scorings(self) -> int:
        """Forward passes of the model, beside training, per response."""
        reference = self.algorithm != "sft" if self.reference is None else self.reference
        return int(reference) + int(self.generates if self.log_probs is None else self.log_probs)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.rollout.gpus is not None and not self.generates:
            raise ValueError(f"rollout.gpus: {self.algorithm!r} generates nothing; leave it out")
        if self.generates and self.rollout.gpus is not None and self.rollout.gpus >= self.gpus:
            raise ValueError(f"rollout.gpus: {self.rollout.gpus} of {self.gpus} GPUs leave none to train")
        if self.behind and (self.colocated or not self.generates):
            raise ValueError("behind: needs 'rollout.gpus': GPUs that do both in turn cannot be ahead")
        if self.rollout.stream and not self.behind:
            raise ValueError(
                "rollout.stream: needs 'behind' of at least 1: the next step's responses use older weights"
            )
        if self.rollout_gpus % self.rollout.tensor:
            raise ValueError(f"rollout.tensor: {self.rollout_gpus} GPUs are not a multiple of {self.rollout.tensor}")
        if self.responses > RESPONSES_MOST:
            raise ValueError(f"prompts x samples: {self.responses:,} responses a step, at most {RESPONSES_MOST:,}")
        if self.response.mean >= self.response.most:
            raise ValueError(f"response.mean: {self.response.mean:g} is not below 'most', {self.response.most}")
        if self.critic is not None and self.algorithm != "ppo":
            raise ValueError(f"critic: {self.algorithm!r} has none; allowed with ppo")
        if self.responses % self.updates:
            raise ValueError(f"updates: {self.updates} does not divide the {self.responses} responses of a step")
        return self


class PostTrainingKeys(Section):
    """Keys of a scenario."""

    post_training: tuple[Loop, ...] = ()  # loops of rollouts and training


def loops_of(scenario: Any) -> tuple[Loop, ...]:
    """The loops of a scenario, which has the keys above."""
    found: tuple[Loop, ...] = scenario.post_training
    return found


def nodes_of(scenario: Any) -> Any:
    """The nodes that have GPUs, all of one kind."""
    return next(group for group in scenario.cluster.groups if group.gpus)


KEYS = PostTrainingKeys
