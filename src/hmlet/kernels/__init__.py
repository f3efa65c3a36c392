"""The sparse product Â x: one interface, a plain reference, a CPU and a CUDA implementation.

operator = Operator.build(indptr, neighbours, edges, scale, device)
y_ND = operator(x_ND)                     # differentiable; Â is symmetric, so backward is the same product
y_ND = operator.drop(rate, key)(x_ND)     # each undirected edge kept with probability 1 - rate, by its number
"""

from hmlet.kernels.operator import Operator

__all__ = ["Operator"]
