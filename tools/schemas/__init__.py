"""What agents publish about their protocols: read from their programs, kept as facts, and compared with ours."""

from tools.schemas.command import EXTRACTORS, Extractor, extractor
from tools.schemas.fitting import Fitted, Misfit, Published, fit
from tools.schemas.inventory import Change, Inventory, changes, committed, read, written
from tools.schemas.places import Places

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
