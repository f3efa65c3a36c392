"""The hot loops: one interface each, by PyTorch and by Triton; `build_operator` and `triton_runs` choose.

operator = build_operator(indptr, neighbours, edges, scale, device)
y_ND = operator(x_ND)                     # Â x, differentiable; Â is symmetric, so backward is the same product
y_ND = operator.drop(rate, key)(x_ND)     # each undirected edge kept with probability 1 - rate, by its number
y_ND = operator.weigh(weights_E)(x_ND)    # other weights at the undirected edges
operator.append(layers)                   # Â e of the last layer, whose other gradients are added inside the product
with part("optimizer"): ...               # a profile counts this work for that part of a step
"""

from hmlet.graph.kernels.activation import (
    Activation,
    dense,
    dropout_relu,
    gumbel_softmax,
    head,
    mix,
    norm_dropout_relu,
    probabilities,
    times,
)
from hmlet.graph.kernels.factory import build_operator, plan_operator
from hmlet.graph.kernels.launching import standing_for
from hmlet.graph.kernels.log_sum_exp import Own, kth_best, log_sums
from hmlet.graph.kernels.operator import Operator, Product, draw_key
from hmlet.graph.kernels.parts import part
from hmlet.graph.kernels.precision import multiplies_bfloat16
from hmlet.graph.kernels.scores import pair_scores
from hmlet.graph.kernels.triplets import can_fuse, joined_margins, mean_margins

__all__ = [
    "Activation",
    "Operator",
    "Own",
    "Product",
    "build_operator",
    "can_fuse",
    "dense",
    "draw_key",
    "dropout_relu",
    "gumbel_softmax",
    "head",
    "joined_margins",
    "kth_best",
    "log_sums",
    "mean_margins",
    "mix",
    "multiplies_bfloat16",
    "norm_dropout_relu",
    "pair_scores",
    "part",
    "plan_operator",
    "probabilities",
    "standing_for",
    "times",
]
