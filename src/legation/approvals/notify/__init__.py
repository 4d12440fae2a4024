"""Notices of approvals that reach a person."""

from legation.approvals.notify.notice import Notice
from legation.approvals.notify.notifier import Channel, NotDelivered, Notifier, channels_of, problems

__all__ = ["Channel", "NotDelivered", "Notice", "Notifier", "channels_of", "problems"]
