"""Private object storage: a folder, or an S3 bucket."""

from legation.store.blobs.base import BlobInfo, BlobReader, Blobs, Content, open_blobs, workspace_key

__all__ = ["BlobInfo", "BlobReader", "Blobs", "Content", "open_blobs", "workspace_key"]
