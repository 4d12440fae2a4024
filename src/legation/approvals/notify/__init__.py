"""Notices of approvals that reach a person."""

from legation.approvals.notify.notice import ApprovalNotice
from legation.approvals.notify.notifier import NotDelivered, NoticeChannel, Notifier, channels_of, problems

__all__ = ["NoticeChannel", "NotDelivered", "ApprovalNotice", "Notifier", "channels_of", "problems"]
