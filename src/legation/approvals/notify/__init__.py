"""Notices of approvals that reach a person."""

from legation.approvals.notify.notice import ApprovalNotice, NotDelivered, NoticeChannel
from legation.approvals.notify.notifier import Notifier, channels_of, problems

__all__ = ["ApprovalNotice", "NotDelivered", "NoticeChannel", "Notifier", "channels_of", "problems"]
