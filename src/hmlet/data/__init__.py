"""From interaction files to a checked, split data set with contiguous integer ids."""

from hmlet.data.dataset import PARTS, Csr, Dataset
from hmlet.data.interactions import Interactions, Vocabulary

__all__ = ["PARTS", "Csr", "Dataset", "Interactions", "Vocabulary"]
