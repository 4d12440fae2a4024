"""Plans: the one that a session has, and those that have names."""

from typing import TypeAlias

from legation.wire.acp.content import Unread
from legation.wire.acp.shape import Shape

PlanPriority: TypeAlias = str
PLAN_PRIORITIES = ("high", "medium", "low")
PlanStatus: TypeAlias = str
PLAN_STATUSES = ("pending", "in_progress", "completed")


class PlanEntry(Shape):
    content: str
    priority: PlanPriority
    status: PlanStatus


class Plan(Shape, tag="plan", tag_field="sessionUpdate"):
    """The agent's whole plan, which replaces the earlier one."""

    entries: tuple[PlanEntry, ...]


class PlanItems(Shape, tag="items", tag_field="type"):
    """A plan as entries, all of them."""

    plan_id: str
    entries: tuple[PlanEntry, ...]


class PlanFile(Shape, tag="file", tag_field="type"):
    """A plan that is in a file."""

    plan_id: str
    uri: str


class PlanMarkdown(Shape, tag="markdown", tag_field="type"):
    """A plan as text."""

    plan_id: str
    content: str


PlanContent: TypeAlias = PlanItems | PlanFile | PlanMarkdown | Unread


class PlanUpdate(Shape, tag="plan_update", tag_field="sessionUpdate"):
    """One of several plans, whole: it replaces the earlier one of its `planId`."""

    plan: PlanContent


class PlanRemoved(Shape, tag="plan_removed", tag_field="sessionUpdate"):
    """That plan is no longer followed."""

    plan_id: str
