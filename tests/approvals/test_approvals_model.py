"""Any sequence of changes, against a model that is a dozen lines: the same outcome each time, and a chain that holds."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.approvals.installation import (
    AGENT,
    NOW,
    PERSON,
    SECOND,
    SUPERVISOR,
    Installation,
    open_installation,
    principal,
    proposal,
)
from tests.store.database.databases import opened

from legation.approvals.approval import MIN_USE_MS, Approval, ApprovalAnswer, label
from legation.approvals.transitions import expire_due, supersede
from legation.errors import AlreadyAnswered, Conflict, Forbidden, LegationError
from legation.store.database.sqlite import SqliteDatabase
from legation.wire.principal import Principal

WHO = [PERSON, principal("user", "usr_2", 2), SUPERVISOR, SECOND, AGENT, principal("agent", "claude", 1)]
WAITERS = ["ins_1", "ins_2"]


@dataclass
class Model:
    approval: Approval
    needs: str
    expires: int
    status: str = "pending"
    consumed: bool = False
    holder: Principal | None = None
    until: int = 0

    def is_open(self) -> bool:
        return self.status in ("pending", "approved") and not self.consumed

    def refusal(self, who: Principal, now: int, *, outranks: bool) -> type[LegationError] | None:
        """Of claiming, escalating or answering. `outranks`: a claim yields only to somebody of a higher level."""
        if who.level < 1 or who in (AGENT, WHO[-1]) or (self.needs == "person" and who.level < 2):
            return Forbidden
        if self.status != "pending" or self.expires <= now:
            return AlreadyAnswered
        held = self.holder is not None and self.until > now and label(self.holder) != label(who)
        if held and (
            who.level < 2 or (outranks and self.holder is not None and self.holder.level >= who.level)
        ):
            return Conflict
        return None


class Life(RuleBasedStateMachine):
    asked = Bundle("asked")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.folder = tempfile.TemporaryDirectory()
        self.now = NOW
        self.models: list[Model] = []

    @initialize()
    def begin(self) -> None:
        async def enter() -> Installation:
            database = SqliteDatabase(Path(self.folder.name) / "legation.db")
            made = await open_installation(await self.stack.enter_async_context(opened(database)))
            for waiter in WAITERS:
                await made.sign(waiter)
            return made

        self.installation = self.runner.run(enter())

    def attempt(self, work: Any, refusal: type[LegationError] | None) -> Any:
        """`work` must end as the model says."""
        self.now += 1
        if refusal is None:
            return self.runner.run(work)
        with pytest.raises(LegationError) as caught:
            self.runner.run(work)
        assert type(caught.value) is refusal
        return None

    @rule(target=asked, verdict=st.sampled_from(["supervisor", "human_approval"]), waiter=st.sampled_from(WAITERS),
          wait=st.sampled_from([20, 1000]))  # fmt: skip
    def ask(self, verdict: str, waiter: str, wait: int) -> Model:
        given = proposal(verdict=verdict, waiter=waiter, expires_at=self.now + wait)
        approval = self.runner.run(self.installation.do(self.installation.approvals.propose, given, self.now))
        model = Model(approval, "person" if verdict == "human_approval" else "supervisor", self.now + wait)
        self.models.append(model)
        return model

    @rule(model=asked, who=st.sampled_from(WHO), yes=st.booleans())
    def resolve(self, model: Model, who: Principal, yes: bool) -> None:
        refusal = model.refusal(who, self.now, outranks=False)
        answer = ApprovalAnswer(approve=yes)
        self.attempt(self.installation.answer(model.approval, answer, who, self.now), refusal)
        if refusal is None:
            model.status = "approved" if yes else "denied"
            model.expires = max(model.expires, self.now - 1 + MIN_USE_MS) if yes else model.expires

    @rule(model=asked, who=st.sampled_from(WHO))
    def claim(self, model: Model, who: Principal) -> None:
        refusal = model.refusal(who, self.now, outranks=True)
        self.attempt(
            self.installation.do(self.installation.approvals.claim, who, model.approval.id, 1000, self.now),
            refusal,
        )
        if refusal is None:
            model.holder, model.until = who, self.now - 1 + 1000

    @rule(model=asked, who=st.sampled_from(WHO))
    def escalate(self, model: Model, who: Principal) -> None:
        already = model.needs == "person" and model.status == "pending" and model.expires > self.now
        outsider = who in (AGENT, WHO[-1])
        refusal = None if already and not outsider else model.refusal(who, self.now, outranks=False)
        self.attempt(
            self.installation.do(
                self.installation.approvals.escalate, who, model.approval.id, None, self.now
            ),
            refusal,
        )
        if refusal is None and not already:
            model.needs, model.holder = "person", None

    @rule(model=asked, right=st.booleans())
    def consume(self, model: Model, right: bool) -> None:
        usable = model.status == "approved" and not model.consumed and model.expires > self.now
        given: dict[str, Any] = {} if right else {"digest": "0" * 64}
        self.attempt(
            self.installation.consume(model.approval, self.now, **given),
            None if usable and right else Conflict,
        )
        model.consumed = model.consumed or (usable and right)

    @rule(model=asked)
    def cancel(self, model: Model) -> None:
        ids = [model.approval.id]
        work = self.installation.do(self.installation.approvals.cancel, "local", ids, "caller-gone", self.now)
        assert len(self.attempt(work, None)) == model.is_open()
        model.status = "cancelled" if model.is_open() else model.status

    @rule(step=st.sampled_from([1, 15, 600, MIN_USE_MS]))
    def expire(self, step: int) -> None:
        self.now += step
        due = [model for model in self.models if model.is_open() and model.expires <= self.now]
        ended = self.attempt(
            expire_due(self.installation.ledger, self.installation.approvals, self.now), None
        )
        assert {approval.id for approval in ended} == {model.approval.id for model in due}
        for model in due:
            model.status = "expired"

    @rule(waiter=st.sampled_from(WAITERS))
    def restart(self, waiter: str) -> None:
        dead = [model for model in self.models if model.is_open() and model.approval.holder == waiter]
        work = supersede(self.installation.ledger, self.installation.approvals, [waiter], self.now)
        assert len(self.attempt(work, None)) == len(dead)
        for model in dead:
            model.status = "superseded"

    @invariant()
    def the_database_says_what_the_model_says(self) -> None:
        for model in self.models:
            found = self.runner.run(self.installation.get(model.approval))
            assert (found.status, found.consumed_at is not None) == (model.status, model.consumed)
            assert found.needs == model.needs

    def teardown(self) -> None:
        try:
            if hasattr(self, "installation"):
                assert self.runner.run(self.installation.verify()).faults == ()
                shown = {entry.approval_id: entry for entry in self.runner.run(self.installation.entries())}
                for model in self.models:
                    assert shown[model.approval.id].approval_status == model.status
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()
            self.folder.cleanup()


Life.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLife = pytest.mark.heavy(Life.TestCase)
