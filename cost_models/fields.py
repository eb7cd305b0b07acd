"""The base of every document of the cost model, and the bounds of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

# Upper bounds keep all products below 2**53, and limit the work of one request.
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
# No machine is below these bounds, and seconds would exceed the range of floats.
BytesPerSecond = Annotated[float, Field(ge=1e4, le=1e18)]
FlopPerSecond = Annotated[float, Field(ge=1e6, le=1e20)]
# Printable: names reach terminals, scripts and logs.
Name = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")
]


class Spec(BaseModel):
    """A frozen document that refuses unknown fields, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed, without cached values."""
        copied = super().model_copy(update=update, deep=deep)
        for name in set(vars(copied)) - set(type(self).model_fields):
            del vars(copied)[name]
        return copied
