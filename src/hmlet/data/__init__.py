"""From interaction files to a checked, split data set with contiguous integer ids.

The readers need Polars and are imported when a file is read; a prepared directory and the named sets need none of it.
"""

from hmlet.data.columns import Columns
from hmlet.data.dataset import PARTS, Csr, Dataset
from hmlet.data.interactions import Interactions, Vocabulary
from hmlet.data.preparation import prepare

__all__ = ["PARTS", "Columns", "Csr", "Dataset", "Interactions", "Vocabulary", "prepare"]
