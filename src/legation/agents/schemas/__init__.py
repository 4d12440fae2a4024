"""What agents publish about their protocols: read from their programs, kept as facts, and compared with ours."""

from legation.agents.schemas.command import EXTRACTORS, Extractor, extractor
from legation.agents.schemas.fitting import Fitted, Misfit, Published, fit
from legation.agents.schemas.inventory import Change, Inventory, changes, committed, read, written
from legation.agents.schemas.places import Places

__all__ = [
    "EXTRACTORS",
    "Change",
    "Extractor",
    "Fitted",
    "Inventory",
    "Misfit",
    "Places",
    "Published",
    "changes",
    "committed",
    "extractor",
    "fit",
    "read",
    "written",
]
