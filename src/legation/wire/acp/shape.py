"""What every ACP shape has in common.

Shapes are read with unknown fields ignored (the log keeps the bytes) and written with absent optional
fields left out. Words that agents may extend (kinds, statuses, reasons) are plain strings, and the ones
the protocol names are listed beside them.
"""

from collections.abc import Mapping
from typing import dataclass_transform

import msgspec

Json = object
"""Any JSON value, passed through without a look inside."""

Meta = Mapping[str, object]

PROTOCOL_VERSION = 1


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all ACP shapes: camelCase on the wire, `_meta` everywhere."""

    meta: Meta | None = msgspec.field(default=None, name="_meta")
