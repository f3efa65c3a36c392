"""A table of settings as a type. Models, losses and training each declare theirs, and a recipe is made of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
Depth = Annotated[int, Field(ge=1, le=16)]


class Section(BaseModel):
    """One table of a recipe: frozen, with unknown keys rejected. A docstring under a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
