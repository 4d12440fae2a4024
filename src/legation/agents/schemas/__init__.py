"""What agents publish about their protocols: read from their programs, kept as facts, and compared with ours."""

from legation.agents.schemas.drift import Change, changes
from legation.agents.schemas.extractor import EXTRACTORS, Extractor, extractor
from legation.agents.schemas.fitting import Fitted, Misfit, fit
from legation.agents.schemas.forms import Published
from legation.agents.schemas.inventory import Inventory, committed, read, written
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
