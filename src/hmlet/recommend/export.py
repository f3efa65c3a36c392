"""Top-N lists for many users as Parquet, CSV or JSON lines, with the user's own ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from torch import Tensor

from hmlet.data import Dataset
from hmlet.errors import ConfigError
from hmlet.ranking.evaluation import KNOWN, rank_blocks, seen_items
from hmlet.recommend.answers import ranked_schema, ranked_table
from hmlet.runs.finished import FinishedRun
from hmlet.runs.recorded import require_unrecorded
from hmlet.system.files import replacing
from hmlet.system.progress import Advance, silent
from hmlet.system.ranks import ALONE, Ranks

Write = Callable[[pa.Table], None]


def export(
    run: FinishedRun,
    out: Path | str,
    k: int = 20,
    users: npt.NDArray[np.int64] | None = None,
    mask: str = KNOWN,
    allowed_I: Tensor | None = None,
    advance: Advance = silent,
    ranks: Ranks = ALONE,
) -> int:
    """Write the top-k of users (all without `users`) to a file and return its rows: user, item, rank from 1, score.

    The suffix of `out` says the format. Blocks of users are ranked and written one after the other, so memory does not
    grow with their number; the file gets its name when it is whole. Of several `ranks` each ranks a share of every
    block, and rank 0 writes.
    """
    out, data = Path(out), run.data
    if out.suffix not in _WRITERS:
        raise ConfigError(f"{out} does not end in {', '.join(_WRITERS)}", "name the format by the file's suffix")
    require_unrecorded(out)
    chosen = np.arange(data.n_users) if users is None else users
    rows = 0
    with _writing(out, data, ranks) as write:
        advance(0, len(chosen))
        done = 0
        for block, ranked in rank_blocks(*run.scored, chosen, k, seen_items(data, mask), allowed_I, ranks):
            table = ranked_table(data, block, ranked)
            write(table)
            rows, done = rows + len(table), done + len(block)
            advance(done, len(chosen))
    return rows


@contextmanager
def _writing(out: Path, data: Dataset, ranks: Ranks) -> Iterator[Write]:
    """What writes a table to a file on rank 0, and nothing on the others."""
    if ranks.rank:
        yield lambda table: None
        return
    with (
        replacing(out, ConfigError) as temporary,
        temporary.open("wb") as file,
        _WRITERS[out.suffix](file, ranked_schema(data)) as write,
    ):
        yield write


@contextmanager
def _parquet(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        yield writer.write_table


@contextmanager
def _csv(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with pyarrow.csv.CSVWriter(file, schema) as writer:
        yield writer.write_table


@contextmanager
def _json_lines(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    def write(table: pa.Table) -> None:
        lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in table.to_pylist())
        file.write("".join(lines).encode())

    yield write


_WRITERS: dict[str, Any] = {".parquet": _parquet, ".csv": _csv, ".jsonl": _json_lines}
