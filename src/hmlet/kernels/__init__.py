"""The hot loops: one interface each, a plain reference, a CPU and a CUDA implementation.

operator = Operator.build(indptr, neighbours, edges, scale, device)
y_ND = operator(x_ND)                     # Â x, differentiable; Â is symmetric, so backward is the same product
y_ND = operator.drop(rate, key)(x_ND)     # each undirected edge kept with probability 1 - rate, by its number
h = dropout_relu(x, rate, generator)
"""

from hmlet.kernels.activation import dropout_relu, mix
from hmlet.kernels.operator import Operator, draw_key

__all__ = ["Operator", "draw_key", "dropout_relu", "mix"]
