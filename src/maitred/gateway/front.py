"""The hop as a front sees it: an endpoint per model, whose requests the core answers; one frame a turn of the loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import mmap
import os
import socket
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

import numpy as np

from maitred import host
from maitred.endpoint import Ticket
from maitred.errors import Draining, Internal, MaitredError, NoReplica, QueueFull, ReplicaLost
from maitred.events import Event, RequestEnded
from maitred.gateway import hop
from maitred.gateway.answers import defect, log
from maitred.gateway.hop import INLINE_BYTES, MAX_FORMS, REQUESTS_A_FRAME
from maitred.messages import ITEM_BYTES, Outputs, Request, Result, Tensor
from maitred.model.signature import SAME_GROUP
from maitred.replica import channel
from maitred.replica.frames import Clogged, FrameReader, FrameWriter
from maitred.replica.layout import raw
from maitred.replica.memory import Arena, Block, NoMemory, Segment
from maitred.wire.coerce import NUMPY_TYPES

BUSY_BYTES: Final = 16 << 20
"""With so much on its way to a core that does not read, requests are refused here."""
_LIMIT_BYTES: Final = 1 << 40
_ROOM: Final = 1 << 20

_request_of: Final = attrgetter("request")
_number_of: Final = attrgetter("number")
_usual_of: Final = attrgetter("group", "rows", "lane", "tenant", "outputs")
_deadline_of: Final = attrgetter("deadline")
_received_of: Final = attrgetter("received_at")
_size_of: Final = attrgetter("size_bytes")
_id_of: Final = attrgetter("id")
_trace_of: Final = attrgetter("trace")
_rare_of: Final = attrgetter("parameters", "ragged")
_NOT_RARE: Final = (None, None)


class HopTicket(Ticket):
    """A ticket that the core knows by a number."""

    __slots__ = ("number",)

    def __init__(self, request: Request, owner: Remote, submitted_at: float, number: int) -> None:
        self.request = request
        self.ended = False
        self.result = None
        self.error = None
        self.submitted_at = submitted_at
        self.started_at = 0.0
        self.attempts = 0
        self.owner = owner
        self.watcher = None
        self.number = number


class _Kind:
    """A form under its number, and whether its requests go through the pipe as they are."""

    __slots__ = ("number", "plain")

    def __init__(self, number: int, plain: bool) -> None:
        self.number = number
        self.plain = plain


class Remote:
    """One model that the core runs. An `Endpoint`."""

    __slots__ = ("number", "name", "version", "front", "new", "_kinds", "_usual", "_numbers", "_forms", "_anew")

    def __init__(self, number: int, name: str, version: str, front: Front) -> None:
        self.number = number
        self.name = name
        self.version = version
        self.front = front
        self.new: list[HopTicket] = []
        """Submitted in this turn."""
        self._kinds: dict[Any, _Kind] = {}
        self._usual: dict[Any, int] = {}
        """Numbers of plain forms, for requests whose group says all about their shapes."""
        self._numbers = itertools.count()
        self._forms: list[hop.Form] = []
        self._anew = False

    def submit(self, request: Request) -> Ticket:
        front = self.front
        front.count = number = front.count + 1
        ticket = HopTicket(request, self, request.received_at, number)
        if front.refusing:
            self._refuse(ticket, front.refusal())
            return ticket
        new = self.new
        if not new:
            front.dirty.append(self)
            front.turn_soon()
        new.append(ticket)
        front.tickets[number] = ticket
        return ticket

    def room(self, lane: int) -> int:
        """Only the core knows; it refuses what is too much."""
        return _ROOM

    def cancelled(self, ticket: Ticket) -> None:
        assert isinstance(ticket, HopTicket)
        front = self.front
        if front.tickets.pop(ticket.number, None) is not None:
            front.cancelled.append(ticket.number)
            front.turn_soon()

    def forget(self) -> None:
        """Say every form anew: the model may have become another."""
        self._kinds.clear()
        self._usual.clear()
        self._forms.clear()
        self._anew = True

    def _refuse(self, ticket: HopTicket, error: MaitredError) -> None:
        """End a ticket that the core does not get to see; if its caller has left before, it counts as that."""
        self.front.tickets.pop(ticket.number, None)
        ticket.fail(error)
        code = error.code if ticket.error is None else ticket.error.code
        self.front.listen(RequestEnded(self.name, self.version, code, 0.0))

    # ------------------------------------------------------------------ in columns

    def columns(self) -> list[hop.Asked]:
        """What was submitted in this turn, as the core reads it."""
        new, self.new = self.new, []
        return [
            part
            for start in range(0, len(new), REQUESTS_A_FRAME)
            if (part := self._columns(new[start : start + REQUESTS_A_FRAME])) is not None
        ]

    def _columns(self, tickets: list[HopTicket]) -> hop.Asked | None:
        requests: list[Request] = list(map(_request_of, tickets))
        known = self._usual
        kinds: list[Any] = [known.get(key) for key in map(_usual_of, requests)]
        others = list(map(_rare_of, requests))
        if None in kinds or others.count(_NOT_RARE) != len(others):
            tickets, requests, kinds, data = self._closely(tickets, requests)
            if not tickets:
                return None
            rare = {at: _rare(one) for at, one in enumerate(requests) if _rare_of(one) != _NOT_RARE}
        else:
            data = [tensor.data for request in requests for tensor in request.inputs.values()]
            rare = {}
        forms, self._forms = self._forms, []
        anew, self._anew = self._anew, False
        return hop.Asked(
            self.number, anew, forms, list(map(_number_of, tickets)), kinds, list(map(_deadline_of, requests)),
            list(map(_received_of, requests)), list(map(_size_of, requests)), list(map(_id_of, requests)),
            list(map(_trace_of, requests)), data, rare,
        )  # fmt: skip

    def _closely(
        self, tickets: list[HopTicket], requests: list[Request]
    ) -> tuple[list[HopTicket], list[Request], list[int], list[Any]]:
        """The forms of requests of any kind, and their elements, large ones in shared memory.

        Those for which there is no memory are refused here, and left out.
        """
        if len(self._kinds) + len(requests) > MAX_FORMS:
            self.forget()
        kept: list[HopTicket] = []
        kinds: list[int] = []
        data: list[Any] = []
        for ticket, request in zip(tickets, requests, strict=True):
            kind = self._kind(request)
            pieces: list[Any] = [tensor.data for tensor in request.inputs.values()]
            try:
                hop.encode(request.parameters)  # what cannot travel must not hold up the others of this frame
                if not kind.plain:
                    pieces = self.front.place(request.inputs.values())
            except NoMemory:
                self._refuse(ticket, QueueFull("there is no memory for this request now; send it again later"))
                continue
            except (UnicodeEncodeError, OverflowError, TypeError, NotImplementedError):
                log.exception("a request could not be carried to the core")
                self._refuse(ticket, defect())
                continue
            kept.append(ticket)
            kinds.append(kind.number)
            data += pieces
        return kept, list(map(_request_of, kept)), kinds, data

    def _kind(self, request: Request) -> _Kind:
        tensors = tuple([(name, tensor.dtype, tensor.shape) for name, tensor in request.inputs.items()])
        merges = request.group is not None
        key = (tensors, request.rows, merges, request.lane, request.tenant, request.outputs)
        kind = self._kinds.get(key)
        if kind is None:
            size = sum(ITEM_BYTES.get(dtype, INLINE_BYTES + 1) * math.prod(shape) for _, dtype, shape in tensors)
            kind = self._kinds[key] = _Kind(next(self._numbers), size <= INLINE_BYTES)
            self._forms.append(
                hop.Form(kind.number, tensors, request.rows, merges, request.lane, request.tenant, request.outputs)
            )
        if kind.plain and type(request.group) is tuple and request.group == SAME_GROUP:
            self._usual[_usual_of(request)] = kind.number
        return kind


def _rare(request: Request) -> hop.Rare:
    ragged = request.ragged
    told = None
    if ragged is not None:
        told = (ragged.bucket, dict(ragged.cuts), ragged.elements, ragged.real, ragged.by_row)
    return hop.Rare(request.parameters, told)


class Front:
    """The way from a front to the core and back. Belongs to one event loop."""

    def __init__(
        self,
        reader: FrameReader,
        writing: int,
        control: socket.socket,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """The pipes' descriptors and the socket for segments are the caller's to close, after `close`."""
        self.tickets: dict[int, HopTicket] = {}
        """By number: what the core has not answered."""
        self.count = 0
        self.dirty: list[Remote] = []
        self.cancelled: list[int] = []
        self.refusing = False
        self.lost = False
        """The core has gone, or closed its end."""
        self.heard: Callable[[hop.FromCore], None] = lambda frame: None
        """Told of every frame with a snapshot, another number of connections elsewhere, or the end."""
        self.ended: Callable[[], None] = lambda: None
        """Called once the core has gone."""
        self.least = 0
        """Connections of the front that has fewest."""
        self._loop = loop
        self._control = control
        self._reader = reader
        self._writer = FrameWriter(writing, loop, _LIMIT_BYTES)
        self._arena = Arena(False, 1 << 20, 4 << 30)
        self._blocks: dict[int, Block] = {}
        self._block_numbers = itertools.count(1)
        self._shared: set[int] = set()
        self._arena.retired.append(self._retired)
        self._maps: dict[int, mmap.mmap] = {}
        self._says = hop.FromFront()
        self._refused: dict[tuple[str, str, str], int] = {}
        self._pages: dict[int, asyncio.Future[str]] = {}
        self._page_numbers = itertools.count(1)
        self._scheduled = False
        self._seen = 0
        self._connections = self._elsewhere = 0
        self.in_flight: Callable[[], int] = lambda: 0
        loop.add_reader(reader.fd, self._read)
        loop.call_soon(self._hear_all)  # what came behind the first words

    # ------------------------------------------------------------------ what is said

    def turn_soon(self) -> None:
        """Have a frame written at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.lost:
            return
        parts = [part for remote in self.dirty for part in remote.columns()]
        self.dirty.clear()
        while len(parts) > 1:
            self._send(hop.FromFront(self._seen, [parts.pop(0)]))
        says, self._says = self._says, hop.FromFront()
        says.seen, says.asked, says.cancelled = self._seen, parts, self.cancelled
        says.connections, says.in_flight = self._connections, self.in_flight()
        if self._refused:
            says.refused = [(*key, count) for key, count in self._refused.items()]
            self._refused = {}
        self.cancelled = []
        self._send(says)
        self.refusing = self._writer.kept_bytes > BUSY_BYTES

    def _send(self, frame: hop.FromFront) -> None:
        try:
            self._writer.send(hop.encode(frame))
        except Clogged:
            self._gone()
        except Exception:
            log.exception("requests could not be carried to the core")
            for part in frame.asked:
                self._fail(part.numbers)

    def _fail(self, numbers: list[int]) -> None:
        """A defect has struck these requests: their callers must not wait for ever."""
        for number in numbers:
            if (ticket := self.tickets.pop(number, None)) is not None:
                ticket.owner.forget()  # type: ignore[union-attr]
                ticket.fail(defect())

    def refusal(self) -> MaitredError:
        """Why nothing is taken now."""
        if self.lost:
            return Draining("this server is shutting down; send the request again")
        return QueueFull("this server is behind with its work; send the request again later")

    def listen(self, event: Event) -> None:
        """Have the core count a request that has ended here. A `Listener`."""
        if isinstance(event, RequestEnded):
            key = (event.model, event.version, event.code)
            self._refused[key] = self._refused.get(key, 0) + event.count
            self.turn_soon()

    def http_refused(self, status: int) -> None:
        """Have the core count a request that HTTP refused."""
        statuses = self._says.statuses
        statuses[status] = statuses.get(status, 0) + 1
        self.turn_soon()

    def connected(self, connections: int) -> None:
        """Tell the core how many connections there are."""
        if connections != self._connections:
            self._connections = connections
            self.turn_soon()

    def shown(self, number: int) -> None:
        """This snapshot is what callers see."""
        self._seen = max(self._seen, number)

    def ready(self) -> None:
        """Tell the core that connections are accepted."""
        self._says.ready = True
        self.turn_soon()

    def left(self, cut_off: int) -> None:
        """Tell the core that this front takes no more and owes nobody an answer."""
        self._says.left = cut_off
        self.turn_soon()

    async def page(self) -> str:
        """The page of metrics, as the core writes it. Raises Draining where it has gone."""
        if self.lost:
            raise self.refusal()
        number = next(self._page_numbers)
        future = self._pages[number] = self._loop.create_future()
        self._says.pages.append(number)
        self.turn_soon()
        try:
            return str(await future)
        finally:
            del self._pages[number]

    def place(self, tensors: Iterable[Tensor]) -> list[Any]:
        """The elements of a request's inputs, those beyond what the pipe carries in shared memory.

        Raises NoMemory, or UnicodeEncodeError for texts that cannot be written down.
        """
        pieces: list[Any] = []
        room = INLINE_BYTES
        taken: list[int] = []
        try:
            for tensor in tensors:
                data: Any = hop.encode(tensor.data) if isinstance(tensor.data, list) else raw(tensor.data)
                size = memoryview(data).nbytes
                if size <= room:
                    room -= size
                    pieces.append(tensor.data)
                    continue
                number, place = self._written(data, size)
                taken.append(number)
                pieces.append(place.packed())
        except BaseException:
            for number in taken:
                self._arena.give(self._blocks.pop(number))
            raise
        return pieces

    def _written(self, data: Any, size: int) -> tuple[int, hop.Place]:
        block = self._arena.take(size)
        block.map[block.offset : block.offset + size] = memoryview(data).cast("B")
        number = next(self._block_numbers)
        self._blocks[number] = block
        if block.segment.id not in self._shared:
            self._shared.add(block.segment.id)
            self._share(block.segment)
        return number, hop.Place(number, block.segment.id, block.offset, size)

    def _share(self, segment: Segment) -> None:
        try:
            channel.send_segment(self._control, False, segment.id, segment.size, segment.fd)
        except OSError:  # it has gone, which the end of its pipe tells
            log.debug("a segment could not be handed over")

    def _retired(self, segment: int) -> None:
        """Have the core let go of memory that has been given back here."""
        if segment in self._shared:
            self._shared.discard(segment)
            self._says.retired.append(segment)
            self.turn_soon()

    # ------------------------------------------------------------------ what is heard

    def _read(self) -> None:
        self._reader.fill()
        self._hear_all()

    def _hear_all(self) -> None:
        while not self.lost and (view := self._reader.frame()) is not None:
            self._hear(hop.read_core(view))
        if self._reader.ended:
            self._gone()

    def _hear(self, frame: hop.FromCore) -> None:
        for answers in frame.answers:
            try:
                self._answer(answers)
            except Exception:
                log.exception("the answers of a batch could not be read")
                self._fail(answers.numbers)
                if answers.doubtful:
                    self._says.settled += [(number, Internal.code) for number in answers.numbers]
                    self.turn_soon()
        for number, code, message, retry in frame.errors:
            ticket = self.tickets.pop(number, None)
            if ticket is not None:
                ticket.fail(hop.error_of(code, message, retry))
        for number in frame.freed:
            self._arena.give(self._blocks.pop(number))
        for segment in frame.retired:
            self._map(segment)  # it may lie in the socket yet
            del self._maps[segment]
        if frame.ping:
            self._says.pong = frame.ping
            if frame.ping % hop.TIDY_PINGS == 0:
                self._arena.look()
            self.turn_soon()
        for number, text in frame.pages:
            if number in self._pages and not self._pages[number].done():
                self._pages[number].set_result(text)
        self.least = frame.least
        if frame.snapshot is not None or frame.stop >= 0.0 or frame.elsewhere != self._elsewhere:
            self._elsewhere = frame.elsewhere
            if frame.snapshot is not None:
                self._seen = frame.snapshot.number
                self.turn_soon()
            self.heard(frame)

    def _answer(self, answers: hop.Answers) -> None:
        """End the tickets of one batch, as the pool does it in a server without fronts."""
        blocks: list[int] = []
        tensors = {
            name: self._tensor(dtype, shape, data, blocks)
            for name, dtype, shape, data in hop.read_tensors(answers.tensors)
        }
        outputs = Outputs(tensors, answers.rows, answers.model_seconds, answers.batch_seconds)
        pop = self.tickets.pop
        whole = answers.whole
        for number, start, stop, queued in zip(
            answers.numbers, answers.starts, answers.stops, answers.queued, strict=True
        ):
            ticket = pop(number, None)
            if ticket is None or ticket.ended:
                continue
            result = Result(outputs, start, stop, whole, queued)
            ticket.ended = True
            watcher = ticket.watcher
            if watcher is None:
                ticket.result = result.owned()
            else:
                ticket.result = result
                watcher.ended(ticket)
                ticket.result = None
        if answers.doubtful:
            failed = {ticket.number: ticket.error.code for ticket in outputs.unwritten}
            self._says.settled += [(number, failed.get(number, "ok")) for number in answers.numbers]
            self.turn_soon()
        elif outputs.unwritten:
            log.error("%d answers could not be written, and were counted as written", len(outputs.unwritten))
        if blocks:
            self._says.done += blocks
            self.turn_soon()

    def _tensor(self, dtype: Any, shape: tuple[int, ...], data: Any, blocks: list[int]) -> Tensor:
        kind = type(data)
        if kind is list:
            return Tensor(dtype, shape, data)
        if not data:
            return Tensor(dtype, shape, np.empty(shape, NUMPY_TYPES[dtype]))
        if kind is bytes:
            array = np.frombuffer(data, NUMPY_TYPES[dtype])
            return Tensor(dtype, shape, array if len(shape) == 1 else array.reshape(shape))
        place = hop.Place.read(data)
        if place.block:
            blocks.append(place.block)
        view = memoryview(self._map(place.segment))[place.offset : place.offset + place.size]
        if dtype in ITEM_BYTES:
            return Tensor(dtype, shape, np.frombuffer(view, NUMPY_TYPES[dtype]).reshape(shape))
        return Tensor(dtype, shape, hop.read_items[dtype](view))

    def _map(self, segment: int) -> mmap.mmap:
        while segment not in self._maps:
            handed = channel.receive_segment(self._control)
            if handed is None:
                raise ConnectionError("the core has gone")
            self._maps[handed.id] = host.attach(handed.fd, handed.size, False)
            os.close(handed.fd)
        return self._maps[segment]

    # ------------------------------------------------------------------ the end

    def _gone(self) -> None:
        """The core has gone: whoever waits is told so, and nothing more is taken."""
        if self.lost:
            return
        self._loop.remove_reader(self._reader.fd)
        self.lost = self.refusing = True
        tickets = list(self.tickets.values())
        self.tickets.clear()
        for ticket in tickets:
            ticket.fail(ReplicaLost("the process that runs the models was lost, and the request was not tried again"))
        for future in self._pages.values():
            if not future.done():
                future.set_exception(NoReplica("the process that runs the models was lost"))
        self.ended()

    def close(self) -> None:
        """Give back all that it holds."""
        self._gone()
        self._writer.close()
        self._arena.close()
