"""From interaction files to a checked, split data set with contiguous integer ids.

The readers import Polars when a file is read; a prepared directory and the named sets load without it.
"""

from hmlet.data.columns import Columns
from hmlet.data.dataset import PARTS, Csr, Dataset
from hmlet.data.dialect import Dialect
from hmlet.data.interactions import Interactions, Vocabulary
from hmlet.data.preparation import prepare

__all__ = ["PARTS", "Columns", "Csr", "Dataset", "Dialect", "Interactions", "Vocabulary", "prepare"]
