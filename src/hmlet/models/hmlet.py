"""HMLET: linear and non-linear propagation in parallel, and a gate a layer that chooses between them for each node.

    eᴸ_{i+1} = Â eᴳ_i
    eᴺ_{i+1} = φ(Â x),  x = e⁰ at the first gated layer (the bypassed stream), eᴳ_i after it
    eᴳ_{i+1} = eᴸ, eᴺ or Gate(eᴸ, eᴺ), by the layer's gate type

Â x has been computed already: it is eᴸ_1 for x = e⁰ and the layer's own eᴸ for x = eᴳ_i. A pass costs K products.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from hmlet.graph import Graph
from hmlet.graph.kernels import Activation
from hmlet.models.base import (
    NOISE_FREE,
    Defaults,
    Gated,
    GatedConfig,
    GraphModelConfig,
    Joined,
    Layers,
    Model,
    NodeTensor,
    Pass,
    Product,
)
from hmlet.models.gating import Gate, RandomGate
from hmlet.system.section import Rate

GateType = Literal["linear", "non-linear", "gated"]
HmletName = Literal["hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all"]
LEAST_TEMPERATURE = 0.01


class HmletConfig(GraphModelConfig, GatedConfig):
    """HMLET: each node chooses, layer by layer, between linear and non-linear propagation."""

    family: ClassVar[str] = "hmlet"
    defaults: ClassVar[Defaults] = Defaults(step_share=1.0, losses=("bpr", "multinomial"))

    name: HmletName = "hmlet-end"
    gate_types: tuple[GateType, ...] | None = None
    """One type a layer, instead of the variant's: "linear", "non-linear" or "gated"."""
    activation: Literal["elu", "leaky-relu", "relu", "tanh"] = "elu"
    """φ of the non-linear branch; ELU has α = 1."""
    leaky_slope: Rate = 0.01
    """Slope of "leaky-relu" below zero: 0.01 in the paper's text, 0.1 in the authors' program."""
    nonlinear_input: Literal["bypassed", "gated"] = "bypassed"
    """What the first gated layer's non-linear branch propagates: the bypassed e⁰ (text), or eᴳ (formula)."""
    readout: Literal["mean", "layerwise"] = "mean"
    """One dot product of averaged layers (authors' program), or the sum of a dot product a layer (formula)."""
    gate_hidden: tuple[PositiveInt, ...] = (512, 128, 64)
    """Hidden sizes of the gate's MLP between its input of 2 D and its two logits."""
    gate_dropout: Rate = 0.2
    """Dropout between the gate's layers while training."""
    gate_choice: Literal["learned", "random"] = "learned"
    """"random" is an ablation: each node's choice is drawn once and never trained."""
    gate_training: Literal["straight-through", "soft"] = "soft"
    """Gates while training: one-hot forward with soft gradients (paper), or soft (authors' program)."""
    gate_noise: bool = True
    """Gumbel noise on the logits while training; without it, "soft" is a plain mixture."""
    gate_ranking: Literal["argmax", "noisy", "soft"] = "argmax"
    """Gates of the finished model: noise-free choice, the authors' noisy choice, or the mixture."""
    gate_warmup: Annotated[int, Field(ge=0)] = 0
    """Epochs at the start in which the gates' parameters are frozen."""
    temperature: Literal["formula", "text", "authors"] = "text"
    """τ by epoch e: exp(-0.001 e); 0.7 · 0.995ᵉ, floor 0.01; 0.7 · exp(-0.005 (e - 300)) past 300, same floor."""
    temperature_speed: PositiveFloat = 1.0
    """How fast τ goes through its schedule: in epoch e it has the schedule's value of e times this."""
    temperature_from: NonNegativeInt | None = None
    """The epoch of τ's schedule that training begins with; an update begins where its run ended."""

    @model_validator(mode="after")
    def _one_type_a_layer(self) -> HmletConfig:
        if self.gate_types is not None and len(self.gate_types) != self.layers:
            raise ValueError(
                f"gate_types has {len(self.gate_types)} entries for {self.layers} layers; give one per layer"
            )
        return self

    @property
    def types(self) -> tuple[GateType, ...]:
        """The gate type of each layer: the variant's, unless given one by one."""
        return self.gate_types or variant_types(self.name, self.layers)

    @property
    def gated(self) -> bool:
        return "gated" in self.types

    @property
    def warmup(self) -> int:
        return self.gate_warmup

    def over(self, share: float) -> Self:
        speed = float(f"{self.temperature_speed / share:.6g}")
        return self.model_copy(update={"gate_warmup": int(self.gate_warmup * share), "temperature_speed": speed})

    def continued(self, epochs: int) -> Self:
        changes = {
            "gate_warmup": max(0, self.gate_warmup - epochs),
            "temperature_from": (self.temperature_from or 0) + epochs,
        }
        return self.model_copy(update=changes)


def variant_types(name: HmletName, layers: int) -> tuple[GateType, ...]:
    """The paper's table of variants: which layers are gated. End, Middle and Front gate two layers for any K."""
    width = min(2, layers)
    first, count = {
        "hmlet-all": (1, layers),
        "hmlet-front": (1, width),
        "hmlet-middle": ((layers - width) // 2 + 1, width),
        "hmlet-end": (layers - width + 1, width),
    }[name]
    return tuple("gated" if first <= layer < first + count else "linear" for layer in range(1, layers + 1))


def temperature(schedule: str, epoch: float) -> float:
    """τ in an epoch (from 0) by one of the three schedules that the formula, the text and the authors' program give."""
    if schedule == "formula":
        return math.exp(-0.001 * epoch)
    if schedule == "text":
        return max(0.7 * math.pow(0.995, epoch), LEAST_TEMPERATURE)
    return max(0.7 * math.exp(-0.005 * max(epoch - 300, 0)), LEAST_TEMPERATURE)


class HMLET(Model, Gated):
    """HMLET in any of its variants: All, Front, Middle and End are tables of gate types."""

    Config = HmletConfig
    config: HmletConfig

    def __init__(self, config: HmletConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__(config, graph, generator)
        if config.readout == "layerwise":  # all layers side by side with β = 1 / (K + 1), shared by both factors
            self.joined = Joined("concatenation", (config.layers + 1) ** -0.5)
        self.activation = Activation(config.activation, config.leaky_slope)
        gated = [layer for layer, kind in enumerate(config.types, 1) if kind == "gated"]
        self.gates = nn.ModuleDict({str(layer): self._gate(generator) for layer in gated})
        self.first_nonlinear = next((layer for layer, kind in enumerate(config.types, 1) if kind != "linear"), 0)

    def _gate(self, generator: torch.Generator) -> nn.Module:
        config = self.config
        if config.gate_choice == "random":
            return RandomGate(self.n_users + self.n_items, generator)
        return Gate(config.embedding_size, config.gate_hidden, config.gate_dropout, generator)

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers: list[Tensor] = [self.embedding]
        gates: dict[int, Tensor] = {}
        for layer, kind in enumerate(self.config.types, 1):
            product.append(layers)  # eᴸ = Â eᴳ
            if kind == "linear":
                continue
            bypassed = self.config.nonlinear_input == "bypassed" and layer == self.first_nonlinear
            nonlinear_ND = self.activation.of(layers, 1 if bypassed else layer)  # eᴺ = φ(Â x), and Â x is a layer
            if kind == "gated":
                layers[layer], gates[layer] = self.gates[str(layer)](layers[layer], nonlinear_ND, how)
            else:
                layers[layer] = nonlinear_ND
        return self.readout(layers, how, gates)

    def training_pass(self, temperature: float | Tensor, generator: torch.Generator) -> Pass:
        return Pass(
            noise=generator if self.config.gate_noise else None,
            dropout=generator,
            temperature=temperature,
            hard=self.config.gate_training == "straight-through",
        )

    def ranking_pass(self, epoch: int, generator: torch.Generator) -> Pass:
        if self.config.gate_ranking == "argmax":
            return NOISE_FREE
        if self.config.gate_ranking == "soft":
            return Pass(temperature=self.temperature(epoch), hard=False)
        return self.noisy_pass(epoch, generator)

    def temperature(self, epoch: int) -> float:
        first = self.config.temperature_from or 0
        return temperature(self.config.temperature, (first + epoch) * self.config.temperature_speed)

    def node_tensors(self, n_users: int, n_items: int) -> dict[str, NodeTensor]:
        drawn = [f"gates.{layer}.choice_N2" for layer, gate in self.gates.items() if isinstance(gate, RandomGate)]
        return super().node_tensors(n_users, n_items) | dict.fromkeys(drawn, NodeTensor((n_users + n_items, 2)))
