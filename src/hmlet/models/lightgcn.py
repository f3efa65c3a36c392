"""LightGCN (He et al., SIGIR '20): e_{i+1} = Â e_i, and the layers' mean as the factor."""

from typing import ClassVar, Literal

from hmlet.models.base import Defaults, GraphModelConfig, Layers, Model, Pass, Product


class LightGCNConfig(GraphModelConfig):
    """LightGCN: linear propagation, layers averaged."""

    family: ClassVar[str] = "lightgcn"
    defaults: ClassVar[Defaults] = Defaults(step_share=1.0, losses=("bpr", "multinomial"))
    name: Literal["lightgcn"] = "lightgcn"


class LightGCN(Model):
    """Linear propagation alone."""

    Config = LightGCNConfig

    def propagate(self, product: Product, how: Pass) -> Layers:
        layers = [self.embedding]
        for _ in range(self.config.depth):
            product.append(layers)  # e_{i+1} = Â e_i
        return self.readout(layers, how)
