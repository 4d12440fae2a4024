"""`?limit=&after=` of every list of identity."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

PageLimit = Annotated[int, Meta(ge=1, le=500)]
