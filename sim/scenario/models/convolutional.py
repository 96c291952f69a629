"""The `convolutional` section of a model: a network by its layers, and its derived costs.

A product of a (k x k) kernel costs 2 k^2 c_in c_out / groups FLOP for each place of its output; backward costs as
much for the inputs (not of the first layer) and again for the weights. Memory traffic counts each tensor that
kernels read and write: of a convolution its input 3 times and output 4 times, of a normalisation with ReLU 12 times
its elements, of ReLU alone 5 times, of a sum 5 times.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from equipoise.sim.scenario.section import Count, Section
from equipoise.sim.scenario.units import Int

Natural = Annotated[Int, Field(ge=0)]
DERIVED = ("sample_time", "flop_per_sample", "step", "transformer", "bytes_per_sample", "parameters")


class Layer(Section):
    """One layer; it keeps the height and width of its input, divided by its stride."""

    kind: Literal["conv", "pool", "mean", "dense"] = "conv"  # mean: global average pooling; dense: fully connected
    channels: Natural = 0  # output channels; 0: as many as the input
    kernel: Count = 3  # height and width
    stride: Count = 1  # stride; in a repeated block, of the first repetition
    groups: Natural = 1  # channel groups; 0: depthwise


class Block(Section):
    """Layers in order, repeated."""

    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    repeat: Count = 1  # times
    # adds the input to the output; projected: through a 1x1 convolution where shapes differ
    shortcut: Literal["none", "equal", "projected"] = "none"


class _Tally:
    """Shape on the way through the layers, and sums over them."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.channels, self.height, self.width = channels, height, width
        self.parameters = self.forward_flop = self.first_flop = self.moved = self.kept = self.layers = 0

    @property
    def elements(self) -> int:
        """Of the present tensor."""
        return self.channels * self.height * self.width

    def product(self, layer: Layer, outputs: int, norm: bool) -> None:
        """A convolution with its normalisation or bias, or a dense layer with its bias."""
        dense, before, inputs = layer.kind == "dense", self.elements, self.channels
        kernel, stride = (1, 1) if dense else (layer.kernel, layer.stride)
        if dense:
            inputs, self.height, self.width = before, 1, 1
        groups = inputs if layer.groups == 0 else layer.groups
        if inputs % groups or outputs % groups:
            raise ValueError(f"groups: {groups} does not divide {inputs} and {outputs} channels")
        self.channels, self.height, self.width = outputs, -(-self.height // stride), -(-self.width // stride)
        weights = kernel * kernel * inputs // groups * outputs
        flop = 2 * weights * self.height * self.width
        self.first_flop = self.first_flop or flop
        self.forward_flop += flop
        normed = norm and not dense
        self.parameters += weights + (2 if normed else 1) * outputs
        self.moved += 3 * before + (16 if normed else 9) * self.elements
        self.kept += (2 if normed else 1) * self.elements
        self.layers += 1

    def run(self, layer: Layer, stride: int, norm: bool) -> None:
        """One layer, with this stride."""
        if layer.kind in ("conv", "dense"):
            outputs = layer.channels or self.channels
            self.product(layer.model_copy(update={"stride": stride}), outputs, norm)
            return
        before = self.elements
        height, width = (1, 1) if layer.kind == "mean" else (-(-self.height // stride), -(-self.width // stride))
        self.height, self.width = height, width
        self.moved += 2 * (before + self.elements)
        self.kept += self.elements


class Convolutional(Section):
    """A convolutional network: FLOP, bytes, parameters and activations of a sample follow from its layers."""

    input: tuple[Count, Count, Count]  # channels, height and width of a sample
    blocks: Annotated[tuple[Block, ...], Field(min_length=1)]  # in order
    norm: bool = True  # each convolution is normalised and has no bias
    bound: bool = False  # loading has written what follows into the model

    def tally(self) -> _Tally:
        """The sums over all layers. Raises ValueError where channels and groups do not go together."""
        sums = _Tally(*self.input)
        for k, block in enumerate(self.blocks):
            for turn in range(block.repeat):
                try:
                    self._block(sums, block, turn == 0)
                except ValueError as error:
                    raise ValueError(f"blocks.{k}.layers: {error}") from None
        return sums

    def _block(self, sums: _Tally, block: Block, first: bool) -> None:
        start = _Tally(sums.channels, sums.height, sums.width)
        for layer in block.layers:
            sums.run(layer, layer.stride if first else 1, self.norm)
        if block.shortcut == "none":
            return
        differs = start.elements != sums.elements or start.channels != sums.channels
        if differs and block.shortcut == "projected":
            start.product(Layer(kernel=1, stride=-(-start.height // sums.height)), sums.channels, self.norm)
            for name in ("parameters", "forward_flop", "moved", "kept"):
                setattr(sums, name, getattr(sums, name) + getattr(start, name))
        if not differs or block.shortcut == "projected":
            sums.moved += 5 * sums.elements

    def follows(self, model: BaseModel, element_bytes: int) -> dict[str, object]:
        """Derived keys of the model with their values; `element_bytes` of an activation."""
        sums = self.tally()
        memory = getattr(model, "memory")  # noqa: B009 (a model's, which this room's parent defines)
        kept = float(element_bytes * (sums.kept + self.input[0] * self.input[1] * self.input[2]))
        return {
            "flop_per_sample": 3.0 * sums.forward_flop - sums.first_flop,
            "bytes_per_sample": float(element_bytes * sums.moved),
            "parameters": float(sums.parameters),
            "memory": memory.model_copy(update={"activation_per_sample": kept, "layers": max(1, sums.layers)}),
            "convolutional": self.model_copy(update={"bound": True}),
        }

    def alone(self, model: BaseModel) -> None:
        """Raises ValueError where the model states what follows from its layers, or these cannot be."""
        self.tally()
        if self.bound:
            return
        for name in DERIVED:
            if getattr(model, name) != type(model).model_fields[name].default:
                raise ValueError(f"{name}: follows from 'convolutional'; leave it out")
        if getattr(model, "memory").activation_per_sample:  # noqa: B009
            raise ValueError("memory.activation_per_sample: follows from 'convolutional'; leave it out")
