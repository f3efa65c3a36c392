"""How a model is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt
from pydantic_core import PydanticCustomError

from hmlet.losses.sampling import Draw
from hmlet.system.section import Rate, Section


def _on_the_device(value: object) -> object:
    if value == "host":
        raise PydanticCustomError(
            "removed", 'a graph in host memory is no longer supported; use "device", or leave the key out'
        )
    return value


class TrainConfig(Section):
    """How a model is trained."""

    epochs: PositiveInt = 100
    """At most this many passes; early stopping may end sooner."""
    stop_after: PositiveInt | None = None
    """Epoch after which training ends although its schedule goes on; a refit ends where validation chose to."""
    loss: str = "bpr"
    """The loss to minimise; its settings are in the [loss] table."""
    batch_size: Annotated[int, Field(gt=0, lt=2**31)] = 2048
    """Entries of a batch, such as triplets, that a step draws."""
    draw: Draw = "user"
    """How an entry is drawn: a user, all alike or by the root of how many items they have, and then one of their items;
    or a training interaction, all alike or by its weight."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's step size, at the start."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the step size goes on: as it is, or by a half cosine to nearly nothing in the last epoch."""
    beta2: Rate = 0.999
    """How slowly Adam forgets squared gradients: nearer 1 for noisy small batches, less for large ones."""
    l2: Annotated[float, Field(ge=0.0)] = 1e-4
    """λ on the batch's rows of e⁰."""
    l2_weights: bool = False
    """Whether λ covers the other parameters (gates, transformations) too."""
    edge_dropout: Rate = 0.0
    """Share of undirected edges left out of each step's graph; the rest are scaled up to keep the mean."""
    validate_every: PositiveInt = 5
    """Epochs between two evaluations on the validation part."""
    patience: Annotated[int, Field(ge=0)] = 10
    """Evaluations without a better validation NDCG@20 after which training stops; 0 never stops early."""
    checkpoint_seconds: Annotated[float, Field(ge=0.0)] = 60.0
    """At most this much work is lost to a crash; 0 saves after every step."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Storage type of propagated embeddings and of the gate's products on CUDA, and of the scores that a softmax loss
    compares, on CUDA and on a CPU with instructions for bfloat16; parameters and sums stay float32."""
    optimizer_state: Literal["float32", "bfloat16"] = "float32"
    """Type of Adam's two moments; "bfloat16" halves them, rounded at random so that the mean stays right."""
    graph_memory: Annotated[Literal["device"], BeforeValidator(_on_the_device)] = "device"
    """Where the graph is stored: in the memory of the device that trains."""
    deterministic: bool = False
    """Bit-identical results on CUDA too, for some speed."""
    save_layers: bool = True
    """Store every layer's embeddings with the run: new users and explanations need them."""

    @property
    def last_epoch(self) -> int:
        """The last epoch, unless early stopping ends sooner."""
        return min(self.epochs, self.stop_after or self.epochs)
