"""Columns as positions among their distinct values, so that each text is stored, checked and compared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl


@dataclass(frozen=True)
class Coded:
    """A column as the position of each row's value among some values, one of which may be null."""

    codes: pl.Series
    values: pl.Series

    def decoded(self, name: str) -> pl.Expr:
        """The rows' values, where a frame has their codes under this name."""
        return pl.lit(self.values).gather(pl.col(name)).alias(name)

    def used(self) -> Coded:
        """The same without values that no row has."""
        codes = self.codes.to_numpy()
        some = np.bincount(codes, minlength=len(self.values)) > 0
        if some.all():
            return self
        places = np.cumsum(some, dtype=np.uint32) - np.uint32(1)
        return Coded(pl.Series(places[codes]), self.values.filter(pl.Series(some)))


def code(frame: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """The frame, in any order of its rows, with codes in some columns, and the distinct values of each."""
    values = {name: frame[name].unique() for name in names}
    rows = frame.lazy()
    for name, each in values.items():
        places = pl.DataFrame({name: each}).with_row_index("code").lazy()
        rows = rows.join(places, on=name, nulls_equal=True).drop(name).rename({"code": name})
    return rows.collect(engine="streaming"), values


def ranked(values: pl.Series) -> tuple[npt.NDArray[np.int32], pl.Series]:
    """The rank of each value among the distinct ones, equal ones alike, and the distinct ones in their order."""
    order = pl.DataFrame({"value": values}).with_row_index("code").sort("value")
    order = order.with_columns(pl.col("value").rle_id().alias("rank"))
    rank = np.empty(len(values), dtype=np.int32)
    rank[order["code"].to_numpy()] = order["rank"].to_numpy()
    return rank, order.filter(pl.col("rank") != pl.col("rank").shift(fill_value=-1))["value"]


def with_columns(frame: pl.DataFrame, columns: Mapping[str, pl.Series]) -> pl.DataFrame:
    """A frame, which may have no columns and then seems to have no rows, with more columns or others."""
    return pl.DataFrame({**frame.to_dict(), **columns})
