"""HMLET: linear and non-linear propagation in parallel, and a gate a layer that chooses between them for each node.

    eᴸ_{i+1} = Â eᴳ_i
    eᴺ_{i+1} = φ(Â x),  x = e⁰ at the first gated layer (the bypassed stream), eᴳ_i after it
    eᴳ_{i+1} = eᴸ, eᴺ or Gate(eᴸ, eᴺ), by the layer's gate type

Â x has been computed already: it is eᴸ_1 for x = e⁰ and the layer's own eᴸ for x = eᴳ_i. A pass costs K products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hmlet.config import HmletConfig
from hmlet.graph.kernels import Activation, fork
from hmlet.models.base import Layers, Model, Pass, Product
from hmlet.models.gating import Gate, RandomGate


class HMLET(Model):
    """HMLET in any of its variants: All, Front, Middle and End are tables of gate types."""

    def __init__(self, config: HmletConfig, n_users: int, n_items: int, generator: torch.Generator) -> None:
        super().__init__(config, n_users, n_items, generator)
        self.config = config
        if config.readout == "layerwise":  # all layers side by side with β = 1 / (K + 1), shared by both factors
            self.joined_by, self.factor_scale = "concatenation", (config.layers + 1) ** -0.5
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
        chosen_ND: Tensor = self.embedding
        layers, gates = [chosen_ND], {}
        for layer, kind in enumerate(self.config.types, 1):
            linear_ND, layers[-1] = fork(product, chosen_ND)
            if kind == "linear":
                chosen_ND = linear_ND
            else:
                # At the first layer the bypassed Â e⁰ is the layer's own eᴸ.
                if self.config.nonlinear_input == "bypassed" and 1 < layer == self.first_nonlinear:
                    nonlinear_ND, layers[1] = self.activation.fork(layers[1])
                else:
                    nonlinear_ND, linear_ND = self.activation.fork(linear_ND)
                if kind == "non-linear":
                    chosen_ND = nonlinear_ND
                else:
                    chosen_ND, gates[layer] = self.gates[str(layer)](linear_ND, nonlinear_ND, how)
            layers.append(chosen_ND)
        return Layers(layers, gates)
