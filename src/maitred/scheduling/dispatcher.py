"""The whole pool without I/O: told what happens and when, it says what starts, what ends and when to call again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

from maitred.endpoint import Ticket
from maitred.errors import Cancelled, MaitredError, ModelFault, ReplicaLost
from maitred.messages import BACKGROUND, FOREVER, LANES, NORMAL, Request
from maitred.scheduling.admission import LaneLimits, Load, decide
from maitred.scheduling.aside import Aside
from maitred.scheduling.batching import Batch, Bounds, form
from maitred.scheduling.curve import Curve
from maitred.scheduling.fairness import Shares, Tenants
from maitred.scheduling.late import deadline_of, find_overdue, late_running, late_waiting, too_late
from maitred.scheduling.outage import Outage
from maitred.scheduling.patience import Patience
from maitred.scheduling.queue import WAITING, Queue
from maitred.scheduling.recovery import TABLE, Cause, Group, Quarantine, RowBound, Step, quarantined, standing
from maitred.scheduling.replicas import Replica, Replicas
from maitred.scheduling.returning import ENOUGH, MOST_SECONDS, Returning

__all__ = ["Batch", "Cause", "DispatchSettings", "Dispatcher", "Effects"]

_REVIEW_BATCHES: Final = 32
"""How often the curve is asked which batches pay."""
_TRY_LARGER: Final = 1 / 64
"""Share of batches that ignore that answer, for a curve learns only from what runs."""
_SATURATED_WEIGHT: Final = 1 / 8
_AS_LONG_AS: Final = 0.95
"""Part of the implied deadline that a request may have spent before it was submitted."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """How one pool decides."""

    max_batch_rows: int = 64
    max_waiting_rows: int = 4096
    """Per lane."""
    max_waiting_bytes: int = 256 * 1024 * 1024
    """Per lane."""
    deadline_seconds: float = 30.0
    """What a request gets whose caller states no deadline. By this such requests are known, and their callers'
    patience is learned."""
    guaranteed_share: float = 0.05
    """Part of the rows that a lower lane gets while better ones could take everything."""
    background_seconds: float = 0.01
    """How long a batch with background rows may run; one request always may."""
    keep_free: int | None = None
    """Idle replicas that background leaves alone; None: one where there are four or more, else none."""
    side_effects: bool = False
    """The model must never run twice for one request."""
    outage_seconds: float = 0.8
    """How long requests wait after the last ready replica was lost, before they are refused until one is ready."""
    quarantine_seconds: float = 600.0
    quarantine_inputs: int = 1024
    wait_seconds: float = MOST_SECONDS
    """How long a replica may wait for callers who tend to return at once (see `Returning`)."""


class Chance(Protocol):
    """What is asked of a `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class Effects(Protocol):
    """What the dispatcher has done. May be called from inside any of its methods; may call `cancelled` back."""

    def start(self, batch: Batch) -> None:
        """Run this batch on its replica."""
        ...

    def fail(self, ticket: Ticket, error: MaitredError) -> None:
        """End this ticket with an error."""
        ...

    def wake(self, at: float) -> None:
        """Call `tick` no later than `at`. Replaces what was asked before, which is later or over."""
        ...

    def hold(self, until: float) -> None:
        """A replica waits for more: call `waited` and `tick` at `until`, to some 10 us, besides what `wake` asked for.

        0.0 is the end of the loop's next turn, once what is here already has been read: then only `tick`. `FOREVER`:
        no more. Each call replaces the one before.
        """
        ...


class Dispatcher:
    """Queue, admission, batching and recovery of one pool.

    Every ticket that `submit` takes ends in exactly one of these ways: `effects.fail`; its batch is handed back by
    `answered`; `evict` gives it back; or whoever owns it ends it and says so with `cancelled`. Each method is told the
    time. Only `tick` starts batches: call it after whatever may have made work or room.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        effects: Effects,
        rng: Chance,
        digest: Callable[[Request], Hashable] | None = None,
    ) -> None:
        """`digest` names an input, for the quarantine; without it nothing is quarantined."""
        self.settings = settings
        self.curve = Curve()
        self.queue = Queue()
        self.patience = Patience()
        implied_seconds = _AS_LONG_AS * settings.deadline_seconds
        self._outage = Outage(settings.outage_seconds)
        self._running: dict[int, Batch] = {}
        """In order of their start."""
        self.load = Load(
            self.queue.lanes,
            self.curve,
            self._running.values(),
            settings.max_batch_rows,
            self.patience,
            implied_seconds,
            self._outage,
        )
        self._limits = LaneLimits(settings.max_waiting_rows, settings.max_waiting_bytes)
        self._effects = effects
        self._rng = rng
        self._digest = digest
        self._replicas = Replicas(self.load)
        self._running_rows = 0
        self._started_rows = 0
        """With what waits: how many have ever come."""
        self.returning = Returning(settings.wait_seconds if settings.max_batch_rows > 1 else 0.0)
        self._held_until = 0.0
        """What `hold` was asked for last; 0.0 while nothing is held."""
        self._waited_until = 0.0
        self._aside = Aside(self.queue)
        self._last_id = 0
        self._bounds = Bounds(settings.max_batch_rows)
        self._bounds.implied_seconds = implied_seconds
        self._row_bound = RowBound(settings.max_batch_rows)
        self._paying_rows = settings.max_batch_rows
        self._answered = 0
        self._shares = Shares(settings.guaranteed_share, float(settings.max_batch_rows))
        self._tenants = Tenants()
        self._quarantine = Quarantine(settings.quarantine_seconds, settings.quarantine_inputs)
        self._blamed = False
        """Whether the loss at hand was an input's fault."""
        self._asked = FOREVER
        """No ticket's deadline is earlier."""
        self._ticking = False
        self._abandoned: list[Batch] = []

    # What callers do

    def submit(self, ticket: Ticket, now: float, parts: Sequence[Ticket] | None = None) -> None:
        """Queue a ticket, or refuse it at once through `effects.fail`.

        `parts`: the tickets into which an oversized request was cut; they are queued instead, and admitted or refused
        as one. A request of a tenant over its fair share travels one lane lower from here on, while there is a queue.
        """
        request = ticket.request
        deadline = request.deadline
        load, limits = self.load, self._limits
        lane = load.lanes[request.lane]
        rows = lane.rows + request.rows
        size_bytes = lane.size_bytes + request.size_bytes
        # The conditions are those under which nothing in `_submit_closely` finds anything to see to.
        if (
            load.slots
            and deadline - now > load.longest_seconds
            and rows < limits.max_waiting_rows
            and size_bytes <= limits.max_waiting_bytes
            and not (request.tenant or ticket.attempts or self._quarantine.until)
            and parts is None
        ):
            line = lane.lines.get(request.group)
            if line is not None and line.tickets and deadline >= line.last and request.rows:
                # What `Queue.push` does where others of the group wait already, without the call.
                ticket.started_at = WAITING
                lane.rows, lane.size_bytes = rows, size_bytes
                line.last = deadline
                line.tickets.append(ticket)
            else:
                self.queue.push(ticket)
        elif not self._submit_closely(ticket, parts, now):
            return
        if deadline < self._asked:
            self._asked = deadline
            self._effects.wake(deadline)

    def _submit_closely(self, ticket: Ticket, parts: Sequence[Ticket] | None, now: float) -> bool:
        """Queue any ticket or refuse it, which gives False."""
        request = ticket.request
        if request.tenant and request.lane != BACKGROUND:
            self._lower_lane(request, parts, now)
        error = decide(request, self.load, self._limits, now)
        if error is None and self._quarantine.until:
            error = self._check_quarantine(ticket, now)
        if error is not None:
            self._effects.fail(ticket, error)
            return False
        if parts is not None:
            for part in parts:
                self.queue.push(part)
        elif ticket.attempts:
            self._aside.add(Group([ticket], broken=False, apart=True))
        else:
            self.queue.push(ticket)
        load = self.load
        if load.batch_seconds and request.deadline - now <= load.longest_seconds:
            load.caution.admitted(now)
        return True

    def cancelled(self, ticket: Ticket, now: float) -> Batch | None:
        """A ticket was ended by its owner. Returns its batch if that still runs and none of its members is wanted."""
        if isinstance(ticket.error, Cancelled) and self._is_implied(ticket):
            self.patience.hung_up(now - ticket.submitted_at, now)
        if self.queue.forget(ticket):
            return None
        started_at = ticket.started_at
        for batch in self._running.values():
            if batch.started_at == started_at and ticket in batch.tickets:
                batch.alive -= 1
                return None if batch.alive else batch
        return None

    def evict(self, now: float) -> list[Ticket]:
        """Take out every ticket that is not running, best lane first; they belong to the caller again."""
        taken = self._aside.clear()
        taken.extend(self.queue.clear())
        return taken

    # What replicas do

    def add(self, replica: int, room: int, now: float) -> None:
        """A replica is ready for `room` batches at a time."""
        self._replicas.add(replica, room)
        self._learn()

    def remove(self, replica: int, now: float) -> None:
        """Give a replica no new batch; those it runs may still end. Unknown replicas are ignored."""
        slots = self.load.slots
        self._replicas.remove(replica)
        self._learn()
        if slots and not self.load.slots:
            self._outage.begin(now)
            self._see_to_outage(now)

    def expect(self, replicas: int, now: float, looping: bool = False, reason: str = "") -> None:
        """How many replicas are on their way; `looping`: they die one after the other, without an answer in between.

        `reason`: why there are none and will be none, for callers.

        With none ready, whoever waits without hope (see `Outage`) is refused, now or once `tick` is called for it.
        """
        outage = self._outage
        outage.expected, outage.looping, outage.reason = replicas, looping, reason
        if not self.load.slots:
            self._see_to_outage(now)

    def answered(self, replica: int, batch_id: int, now: float, seconds: float) -> Batch:
        """A replica has answered a batch after `seconds`; the caller ends its tickets. KeyError if it does not run."""
        batch = self._release(replica, batch_id)
        returning = self.returning
        if len(batch.tickets) > 1:
            returning.answered(len(batch.tickets), now)
        else:
            returning.turns = 0
        self.curve.teach(batch.rows, seconds)
        self.load.learn(self.settings.max_batch_rows, self.settings.max_waiting_rows)
        self._answered += 1
        if not self._answered % _REVIEW_BATCHES:
            self._paying_rows = self.curve.best_rows(self.settings.max_batch_rows)
            returning.learn(self.curve.fixed_seconds())
        if not self._row_bound.steady:
            self._row_bound.answered(len(batch.tickets), batch.rows)
        first = batch.tickets[0]
        if self.patience.seen and not first.ended and self._is_implied(first):
            self.patience.answered(now - first.submitted_at, batch.alive)
        if batch.group is not None and batch.group.split is not None:
            batch.group.split.settle(failed=False)
        return batch

    def written(self, batch: Batch, now: float) -> None:
        """The answers of a batch, of which `answered` was told, are on their way to its callers.

        Need not be called while `returning.seconds` is 0.0.
        """
        tickets = batch.tickets
        group = tickets[0].request.group
        if group is not None and (len(tickets) > 1 or self.load.waiting_rows()):
            self.returning.written(batch.rows, len(tickets), group, self._arrived_rows(), now)

    def failed(self, replica: int, batch_id: int, cause: Cause, error: MaitredError, now: float) -> None:
        """A replica could not answer a batch; `error` is for the member that is to blame. KeyError if it does not run.

        Members are tried again or failed as the table of `recovery.py` says.
        """
        batch = self._release(replica, batch_id)
        if cause == Cause.OUT_OF_MEMORY and len(batch.tickets) > 1:
            self._row_bound.ran_out_of_memory(batch.rows)
        if cause == Cause.MALFORMED and self.settings.side_effects and len(batch.tickets) > 1:
            error = ModelFault(error.message)  # nobody can tell whose input it was without running them again
        self._recover(batch, Cause(cause), True, error, now)

    def lost(self, replica: int, now: float, started: frozenset[int] | bool = True) -> bool:
        """A replica is gone. `started`: which of its batches had begun, by id, or whether all had.

        True if an input was found to be the culprit, and put into quarantine.
        """
        if replica not in self._replicas:
            return False
        self._blamed = False
        self.remove(replica, now)
        batches = [batch for batch in self._running.values() if batch.replica == replica]
        for batch in batches:
            self._release(replica, batch.id)
        for batch in batches:
            began = started if isinstance(started, bool) else batch.id in started
            error = ReplicaLost("the copy of the model that ran this request was lost, and it was not tried again")
            self._recover(batch, Cause.LOST, began, error, now)
        return self._blamed

    # What time does

    def rang(self) -> None:
        """The alarm that `wake` asked for is spent, be it a little early: the next `tick` asks for another."""
        self._asked = -FOREVER

    def waited(self) -> None:
        """The time that `hold` asked for is over, be it a little early: the next `tick` waits no longer."""
        self._waited_until, self._held_until = self._held_until, 0.0

    def tick(self, now: float) -> Sequence[Batch]:
        """End what is past its deadline, then start what can start.

        Returns the running batches of which, by this, no member is wanted any more.
        """
        if self._ticking:
            return ()  # called back by an effect: the outer call goes on with what it finds
        self._ticking = True
        try:
            if now >= self._asked:
                self._expire(now)
            load, returning = self.load, self.returning
            high, normal, background = self.queue.lanes
            if returning.seconds:
                returning.look(self._arrived_rows(), now)
            while load.room > 0 and (waiting := high.rows + normal.rows + background.rows):
                if load.room == 1 and (returning.turns or returning.missing > 0) and self._waits(waiting, now):
                    break
                if self._held_until:
                    self._held_until = 0.0
                    self._effects.hold(FOREVER)
                if not self._dispatch(now):
                    break
        finally:
            self._ticking = False
        if not self._abandoned:
            return ()
        abandoned, self._abandoned = self._abandoned, []
        return abandoned

    # What there is

    def room(self, lane: int) -> int:
        """Rows that this lane may still send without being refused for want of place."""
        return max(0, self.settings.max_waiting_rows - self.queue.lanes[lane].rows)

    def part_rows(self, lane: int) -> int:
        """How many rows a part of an oversized request should have: background goes in smaller ones."""
        most = self.settings.max_batch_rows
        if lane == BACKGROUND and self.curve.learned:
            return max(1, self.curve.rows_within(self.settings.background_seconds, most))
        return most

    def waiting_rows(self) -> int:
        return self.load.waiting_rows()

    def waiting_requests(self) -> list[int]:
        """Per lane. Counted by looking at each: for reports, not for decisions."""
        counts = [0] * len(LANES)
        for ticket in chain(self.queue.tickets(), self._aside.tickets()):
            if not ticket.ended:
                counts[ticket.request.lane] += 1
        return counts

    def running_rows(self) -> int:
        """Rows on replicas, those included whose callers have left."""
        return self._running_rows

    def running_batches(self) -> int:
        return len(self._running)

    def _arrived_rows(self) -> int:
        """Rows that have ever come, but for those that left or failed while they waited."""
        return self._started_rows + self.load.waiting_rows()

    # Dispatch

    def _waits(self, waiting: int, now: float) -> bool:
        """Whether the one replica with room leaves `waiting` rows for now, because more are about to come."""
        returning = self.returning
        if returning.missing > 0 and returning.share > ENOUGH and (until := self._wait_until(waiting, now)):
            returning.turns = 0
            if until != self._held_until:
                self._held_until = until
                self._effects.hold(until)
            return True
        if returning.turns and returning.gathers(waiting, self._row_bound.rows, now):
            self._effects.hold(0.0)
            return True
        return False

    def _wait_until(self, waiting: int, now: float) -> float:
        """Until when what waits is left for callers who were just answered and are likely to return; 0.0: no longer.

        Never with a full batch, with several groups, with any that recovery has set aside, or so long that the batch
        would miss a deadline.
        """
        load, queue = self.load, self.queue
        full = min(self._row_bound.rows, self._paying_rows)
        if waiting >= full or any(self._aside.lanes):
            return 0.0
        group: Hashable = None
        earliest = FOREVER
        for lane in queue.lanes:
            if lane.rows and (head := queue.lead(lane)) is not None:
                request = head.request
                if len(lane.order) > 1 or request.group is None or (group is not None and group != request.group):
                    return 0.0
                group = request.group
                earliest = min(earliest, request.deadline)
        until = self.returning.until(group, now)
        spread = 1.0 + self.curve.spread
        if until and earliest < until + load.full_seconds * spread:
            run = self.curve.seconds(min(waiting + self.returning.missing, full))
            until = min(until, earliest - run * spread)
        return until if until > now and until > self._waited_until else 0.0

    def _dispatch(self, now: float) -> bool:
        """Start one batch, if there is one that may start."""
        replica = self._replicas.pick()
        high, normal, background = self.queue.lanes
        bounds, curve = self._bounds, self.curve
        bounds.rows = self._row_bound.rows
        if self._paying_rows < bounds.rows and self._rng.random() >= _TRY_LARGER:
            bounds.rows = self._paying_rows
        bounds.seconds = self.load.full_seconds
        bounds.patience_seconds = self.patience.seconds
        if background.rows and curve.learned:
            bounds.background_rows = max(1, curve.rows_within(self.settings.background_seconds, bounds.rows))
        leader = self._shares.lead(high.rows, normal.rows, background.rows)
        if self._dispatch_lane(leader, replica, now):
            return True
        for other in range(len(LANES)):
            # What is set aside may be of lower lanes than the one it waits in.
            if other == leader or not (self.queue.lanes[other].rows or self._aside.lanes[other]):
                continue
            if self._dispatch_lane(other, replica, now):
                return True
        return self._replicas.reserve(self._aside.has_suspects())

    def _dispatch_lane(self, lane: int, replica: Replica | None, now: float) -> bool:
        """Start a batch led by this lane, if there is one that may start."""
        lanes = self.queue.lanes
        high, normal, background = lanes
        normal_rows, background_rows = normal.rows, background.rows
        several = high.rows + normal_rows + background_rows != lanes[lane].rows
        late: list[Ticket] = []
        weight = 0
        if self._aside.lanes[lane]:
            weight = self._start_aside(lane, replica, now, late)
        if not weight and replica is not None and (lane != BACKGROUND or self._may_run_background()):
            empty = self.queue.empty
            tickets: list[Ticket] = []
            weight = form(self.queue, lane, self._bounds, self.curve, now, tickets, late)
            if weight:
                if lane != BACKGROUND and lanes[lane].rows:
                    self.load.batch_rows += (weight - self.load.batch_rows) * _SATURATED_WEIGHT
                rows = weight - (self.queue.empty - empty)
                # Earliest first in one lane; but the newest first where patience is short.
                deadline = min(
                    deadline_of(tickets) if several else tickets[0].request.deadline, tickets[-1].request.deadline
                )
                self._start(replica, tickets, rows, deadline, None, now)
        if several:
            charge = self._shares.charge
            charge(NORMAL, weight, normal_rows - normal.rows, normal.rows > 0)
            charge(BACKGROUND, weight, background_rows - background.rows, background.rows > 0)
        if late:
            self._fail_late(late, now)
        return weight > 0

    def _start_aside(self, lane: int, replica: Replica | None, now: float, late: list[Ticket]) -> int:
        """Start the first group set aside that can go now; return what it weighs, 0 if there is none."""
        idle = self._replicas.idle(replica)
        group = self._aside.take(lane, now, room=replica is not None, idle=idle is not None, late=late)
        if group is None:
            return 0
        replica = idle if group.apart else replica
        assert replica is not None
        weight = rows = 0
        for ticket in group.tickets:
            rows += ticket.request.rows
            weight += ticket.request.rows or 1
        self._start(replica, group.tickets, rows, deadline_of(group.tickets), group, now)
        return weight

    def _start(
        self, replica: Replica, tickets: list[Ticket], rows: int, deadline: float, group: Group | None, now: float
    ) -> None:
        self._last_id += 1
        batch = Batch(self._last_id, replica.id, tickets, rows, now, deadline, group, now + self.curve.seconds(rows))
        self._replicas.start(replica, batch.alone)
        self._running[batch.id] = batch
        self._running_rows += rows
        self._started_rows += rows
        self._effects.start(batch)

    def _release(self, replica: int, batch_id: int) -> Batch:
        """The work of a batch is over: its room is free."""
        batch = self._running[batch_id]
        if batch.replica != replica:
            raise KeyError(f"batch {batch_id} does not run on replica {replica}")
        del self._running[batch_id]
        self._running_rows -= batch.rows
        self._replicas.end(replica)
        return batch

    def _may_run_background(self) -> bool:
        """Whether a batch of background may take a replica: some stay idle, unless the lane is owed rows."""
        if self._shares.is_owed(BACKGROUND):
            return True
        keep_free = self.settings.keep_free
        if keep_free is None:
            keep_free = 1 if self._replicas.ready() >= 4 else 0
        return not keep_free or self._replicas.idle_count() > keep_free

    def _is_implied(self, ticket: Ticket) -> bool:
        """Whether the deadline of an online ticket says nothing about its caller's patience."""
        request = ticket.request
        return request.lane != BACKGROUND and request.deadline - ticket.submitted_at >= self.load.implied_seconds

    # Recovery

    def _recover(self, batch: Batch, cause: Cause, started: bool, error: MaitredError, now: float) -> None:
        members = len(batch.tickets)
        step = TABLE[cause][
            standing(members, alone=batch.alone, started=started, side_effects=self.settings.side_effects)
        ]
        alive = [ticket for ticket in batch.tickets if not ticket.ended]
        group = batch.group
        split = group.split if group is not None else None
        if step is Step.BACK:
            self._put_back(alive, group)
            return
        if split is not None:
            split.settle(failed=cause != Cause.LOST)
        if step is Step.SPLIT and alive:
            self._aside.add(Group(alive, split, broken=True))
        elif step is Step.APART and alive:
            for ticket in alive:
                ticket.attempts += 1
            self._aside.add(Group(alive, broken=False, apart=True))
        elif step is Step.QUARANTINE:
            self._put_in_quarantine(batch, now)
        elif step is Step.FAIL:
            if cause != Cause.LOST:
                self._row_bound.failed(members)
            for ticket in alive:
                if not ticket.ended:
                    self._effects.fail(ticket, error)

    def _put_back(self, alive: list[Ticket], group: Group | None) -> None:
        if group is not None:
            self._aside.add(Group(alive, group.split, broken=False, apart=group.apart))
        else:
            self.queue.restore(alive)

    def _put_in_quarantine(self, batch: Batch, now: float) -> None:
        for ticket in batch.tickets:
            if self._digest is not None:
                self._quarantine.add(self._digest(ticket.request), now)
                self._blamed = True
            if not ticket.ended:
                self._effects.fail(ticket, quarantined())

    def _check_quarantine(self, ticket: Ticket, now: float) -> MaitredError | None:
        if self._digest is None:
            return None
        digest = self._digest(ticket.request)
        if self._quarantine.holds(digest, now):
            return quarantined()
        if self._quarantine.recall(digest):
            ticket.attempts = 1
        return None

    def _see_to_outage(self, now: float) -> None:
        """While no replica is ready: refuse those who wait if there is no hope for them, else ask to be woken then."""
        hope_ends = self._outage.hope_ends()
        if now < hope_ends:
            if hope_ends < self._asked:
                self._asked = hope_ends
                self._effects.wake(hope_ends)
            return
        for ticket in self.evict(now):
            if ticket.attempts and self._digest is not None:
                self._quarantine.suspect(self._digest(ticket.request), now)
            if not ticket.ended:
                self._effects.fail(ticket, self._outage.refusal(ran=ticket.attempts > 0))

    def _learn(self) -> None:
        self.load.learn(self.settings.max_batch_rows, self.settings.max_waiting_rows)

    # Deadlines and tenants

    def _expire(self, now: float) -> None:
        """Fail every ticket whose deadline has passed, and ask to be woken for the next."""
        late: list[Ticket] = []
        earliest = FOREVER
        for lane in range(len(LANES)):
            earliest = min(earliest, self.queue.expire(self.queue.lanes[lane], now, late))
            earliest = min(earliest, self._aside.expire(lane, now, late))
        overdue: list[tuple[Batch, Ticket]] = []
        for batch in self._running.values():
            if batch.deadline <= now:
                batch.deadline = find_overdue(batch, now, overdue)
            earliest = min(earliest, batch.deadline)
        self._asked = earliest
        if earliest != FOREVER:
            self._effects.wake(earliest)
        if not self.load.slots:
            self._see_to_outage(now)
        self._fail_late(late, now)
        for batch, ticket in overdue:
            if not ticket.ended:
                batch.alive -= 1
                if not batch.alive:
                    self._abandoned.append(batch)
                self._learn_caution(ticket, now)
                self._effects.fail(ticket, late_running(ticket, now))

    def _fail_late(self, late: list[Ticket], now: float) -> None:
        for ticket in late:
            if not ticket.ended:
                self._learn_caution(ticket, now)
                if ticket.request.deadline > now:
                    self._effects.fail(ticket, too_late(ticket, self.load, now))
                else:
                    self._effects.fail(ticket, late_waiting(ticket, now))

    def _learn_caution(self, late: Ticket, now: float) -> None:
        """Somebody was admitted and is late. Who was in a greater hurry than any batch can be says nothing."""
        if late.request.deadline - late.submitted_at > self.load.batch_seconds:
            self.load.caution.late(late.submitted_at, now)

    def _lower_lane(self, request: Request, parts: Sequence[Ticket] | None, now: float) -> None:
        load = self.load
        over = self._tenants.over(request.tenant, request.rows or 1, now)
        if over and load.waiting_rows() >= load.batch_rows * max(load.slots, 1):
            request.lane += 1
            for part in parts or ():
                part.request.lane = request.lane
