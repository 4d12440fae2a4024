"""Private object storage: a folder, or an S3 bucket."""

from legation.store.blobs.blobs import BlobInfo, Blobs, Content, Reading, open_blobs, workspace_key

__all__ = ["BlobInfo", "Blobs", "Content", "Reading", "open_blobs", "workspace_key"]
