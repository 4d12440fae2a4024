"""Content blocks: what prompts, messages and tool results are made of."""

from typing import TypeAlias

from legation.wire.acp.shape import Json, Shape

UNREAD_TAG = "_unread"


class Annotations(Shape):
    audience: tuple[str, ...] | None = None
    last_modified: str | None = None
    priority: float | None = None


class Text(Shape, tag="text", tag_field="type"):
    text: str
    annotations: Annotations | None = None


class Image(Shape, tag="image", tag_field="type"):
    """Base64 data."""

    data: str
    mime_type: str
    uri: str | None = None
    annotations: Annotations | None = None


class Audio(Shape, tag="audio", tag_field="type"):
    """Base64 data."""

    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLink(Shape, tag="resource_link", tag_field="type"):
    name: str
    uri: str
    mime_type: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | None = None
    annotations: Annotations | None = None


class ResourceContents(Shape):
    """Either `text` or base64 `blob`."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class EmbeddedResource(Shape, tag="resource", tag_field="type"):
    resource: ResourceContents
    annotations: Annotations | None = None


class Unread(Shape, tag=UNREAD_TAG, tag_field="type"):
    """A block of a type, or in a form, that this version does not know: kept as it came in `value`."""

    value: Json


ContentBlock: TypeAlias = Text | Image | Audio | ResourceLink | EmbeddedResource | Unread
