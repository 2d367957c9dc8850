"""The hop as the core sees it: what one front asks becomes requests, and a batch's answers go back to it together.

`Link.ended` and the loop of `Link._submit` are walked by every request: there the budget wins over small functions.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import msgspec

from maitred import host
from maitred.clock import Clock, monotonic
from maitred.deployment.router import Served
from maitred.endpoint import Ticket
from maitred.errors import TABLE, MaitredError, ModelFault, NoReplica
from maitred.events import METHOD_NOT_ALLOWED, Listener, RequestEnded
from maitred.gateway import hop
from maitred.gateway.answers import defect, log
from maitred.gateway.carried import OwnRows, packed
from maitred.gateway.claims import Claims, Kind, Scribbled
from maitred.gateway.hop import INLINE_BYTES, Hopped
from maitred.messages import Chunk, Outputs, Ragged, Result, Tensor
from maitred.replica import channel
from maitred.replica.channel import Broken
from maitred.replica.frames import Clogged, FrameReader, FrameWriter
from maitred.replica.memory import Arena, Block, NoMemory

_LIMIT_BYTES: Final = 256 << 20
"""So much may wait for a front that does not read; then it is killed."""
_MEMO: Final = "hop"
_start_of: Final = attrgetter("start")
_stop_of: Final = attrgetter("stop")
_queued_of: Final = attrgetter("queue_seconds")
_CODES: Final = frozenset({METHOD_NOT_ALLOWED, *(error.code for error in TABLE)})
_MAX_SEGMENTS: Final = 4096

UNSETTLED: Final = "unsettled"
"""The code under which an event tells of a request that a front has yet to answer; `Link` tells of its true end."""


class _Unsettled(MaitredError):
    """Marks a ticket whose answer the front may not be able to write."""

    code = UNSETTLED


_TO_BE_TOLD: Final = _Unsettled("the front that answers this request has not said yet how that went")


class CoreModel:
    """A model under the number by which fronts name it."""

    __slots__ = ("number", "served", "copies", "claims")

    def __init__(self, number: int, served: Served, copies: Callable[[], bool]) -> None:
        """`copies`: the model may look at a request's inputs after its ticket has ended, so that they must not lie in
        memory that a front uses again; processes have copies of their own."""
        self.number = number
        self.served = served
        self.copies = copies
        self.claims: Claims | None = None

    def refresh(self) -> Claims:
        """What holds for it now. Raises Scribbled where nobody can know yet."""
        description = self.served.description
        if description is None:
            raise Scribbled("asked a model that has not told its signature")
        if self.claims is None or self.claims.description is not description:
            self.claims = Claims(description)
        return self.claims

    def told(self) -> hop.Told:
        served = self.served
        known = None if served.description is None else served.description.encode()
        reason, place = hop.clean(served.reason), hop.clean(served.place)
        return hop.Told(self.number, served.name, served.version, served.state, reason, place, known)


class Link:
    """One front, as the core knows it. The watcher of all its requests' tickets. Belongs to one event loop."""

    def __init__(
        self,
        models: dict[int, CoreModel],
        reading: int,
        writing: int,
        control: socket.socket,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        clock: Clock = monotonic,
    ) -> None:
        """The descriptors are the caller's to close, after `close`."""
        self.tickets: dict[int, Ticket] = {}
        """By the front's number: what it has not been answered."""
        self.connections = 0
        self.in_flight = 0
        self.seen = 0
        """The newest snapshot that it shows."""
        self.ponged = 0
        self.ready = False
        self.left = -1
        self.least = 0
        self.elsewhere = 0
        self.told: Callable[[hop.FromFront], None] = lambda frame: None
        """Called with every frame, once what it says has been done."""
        self.failed: Callable[[str], None] = lambda reason: None
        """Called once, with why this front is no longer to be believed or spoken to: `sent ...`."""
        self._models = models
        self._loop = loop
        self._listener = listener
        self._clock = clock
        self._control = control
        self._reading = reading
        self._reader = FrameReader(reading)
        self._writer = FrameWriter(writing, loop, _LIMIT_BYTES)
        self._kinds: dict[int, dict[int, Kind]] = {}
        self._maps: dict[int, memoryview] = {}
        self._arena = Arena(False, 1 << 20, 4 << 30)
        self._blocks: dict[int, Block] = {}
        self._block_number = 0
        self._shared: set[int] = set()
        self._arena.retired.append(self._retired)
        self._unsettled: dict[int, tuple[str, str, float]] = {}
        self._says = hop.FromCore()
        self._scheduled = False
        self._closed = False
        self._batch: Outputs | None = None
        """The batch whose answers are being put together."""
        self._answers = hop.Answers(msgspec.Raw(), 0, 0.0, 0.0, False, False)
        self._own: OwnRows | None = None
        self._special = False
        self._numbers: list[int] = []
        self._results: list[Result] = []
        """Of that batch, in the order of `_numbers`."""
        self._lent: dict[int, list[int]] = {}
        """By number: the front's blocks in which a request's inputs lie."""
        self._control.setblocking(False)
        loop.add_reader(reading, self._read)

    # ------------------------------------------------------------------ what the front says

    def _read(self) -> bool:
        """Hear what the front has said by now. False if that is nothing."""
        came = False
        try:
            came = self._reader.fill()
            while not self._closed and (view := self._reader.frame()) is not None:
                self._hear(hop.read_front(view))
        except (Scribbled, Broken) as error:
            self._fail(str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
            self._fail(f"sent what is no frame ({type(error).__name__})")
        except Exception:  # a defect of ours; what it has asked is in an unknown state, and a new one begins afresh
            log.exception("what a front said could not be dealt with")
            self._fail("was told of in the line before")
        if self._reader.ended:
            self._fail("has closed its pipe")
        return came

    def _fail(self, reason: str) -> None:
        if not self._closed:
            self._loop.remove_reader(self._reading)
            self.close()
            self.failed(reason)

    def _hear(self, frame: hop.FromFront) -> None:
        for asked in frame.asked:
            self._ask(asked, frame.seen)
        for number in frame.cancelled:
            ticket = self.tickets.pop(number, None)
            if ticket is not None:  # else its answer is on the way
                ticket.watcher = None
                ticket.cancel()
                self._let_go(ticket, number)
        if frame.done:
            self.done(frame.done)
        for segment in frame.retired:
            if segment not in self._maps:  # it lies in the socket yet
                self._attach(segment)
            del self._maps[segment]
        for number, code in frame.settled:
            self._settled(number, code)
        for model, version, code, count in frame.refused:
            self._refused(model, version, code, count)
        if frame.connections < 0 or frame.in_flight < 0 or min(frame.statuses.values(), default=1) < 1:
            raise Scribbled("counted backwards")
        self.connections, self.in_flight = frame.connections, frame.in_flight
        self.seen = frame.seen
        if frame.pong:
            self.ponged = frame.pong
        self.ready = self.ready or frame.ready
        if frame.left >= 0:
            self.left = frame.left
        self.told(frame)

    def _settled(self, number: int, code: str) -> None:
        waiting = self._unsettled.pop(number, None)
        if waiting is None or (code not in _CODES and code != "ok"):
            raise Scribbled("told how a request ended that it was not asked about")
        model, version, submitted_at = waiting
        self._listener(RequestEnded(model, version, code, self._clock() - submitted_at))

    def _refused(self, model: str, version: str, code: str, count: int) -> None:
        known = not model or any(
            (one.served.name, one.served.version) == (model, version) for one in self._models.values()
        )
        if not known or code not in _CODES or count < 1:
            raise Scribbled("counted what cannot be")
        self._listener(RequestEnded(model, version, code, 0.0, count))

    def _ask(self, asked: hop.Asked, seen: int) -> None:
        """Submit the requests of one frame for one model. Raises Scribbled."""
        model = self._models.get(asked.model)
        if model is None:
            raise Scribbled("asked a model that is not served")
        claims = model.refresh()
        kinds = self._kinds.setdefault(asked.model, {})
        if asked.anew:
            kinds.clear()
        for form in asked.forms:
            kinds[form.number] = claims.kind(form)
        if len(kinds) > 2 * hop.MAX_FORMS:
            raise Scribbled("sent more forms than it may")
        count = len(asked.numbers)
        received, sizes = asked.received, asked.sizes
        if (
            not count
            == len(asked.kinds)
            == len(asked.deadlines)
            == len(received)
            == len(sizes)
            == len(asked.ids)
            == len(asked.traces)
        ):
            raise Scribbled("sent columns of different lengths")
        if not count:
            return
        # a deadline that is no number would stand in the queue's way for ever; the sum tells
        if not (min(sizes) >= 0 and min(received) >= 0 and max(received) <= self._clock()) or math.isnan(
            sum(asked.deadlines)
        ):
            raise Scribbled("sent times or sizes that cannot be")
        self._submit(model, claims, kinds, asked)

    def _submit(self, model: CoreModel, claims: Claims, kinds: dict[int, Kind], asked: hop.Asked) -> None:
        submit = model.served.endpoint.submit
        tickets = self.tickets
        data, rare = asked.data, asked.rare
        special = bool(rare or claims.shared)
        at = place = 0
        latest = -1
        parameters = ragged = None
        try:
            for number, kind_number, deadline, received, size, id, trace in zip(
                asked.numbers, asked.kinds, asked.deadlines, asked.received, asked.sizes, asked.ids, asked.traces,
                strict=True,
            ):  # fmt: skip
                if kind_number != latest:
                    latest, kind = kind_number, kinds[kind_number]
                    wanted, name, dtype, shape, rows, lane, tenant, outputs = kind.plain
                    group = kind.group
                piece = data[at]
                if type(piece) is bytes and len(piece) == wanted:
                    inputs = {name: Tensor(dtype, shape, piece)}
                    at += 1
                else:
                    stop = at + len(kind.inputs)
                    inputs = self._inputs(model, claims, kind, number, data[at:stop])
                    at = stop
                if special:
                    group, parameters, ragged = self._rare(claims, kind, inputs, rare.get(place))
                    place += 1
                if number in tickets:
                    raise Scribbled("used a number twice")
                ticket = submit(
                    Hopped(
                        inputs, rows, group, deadline, lane, tenant, id, trace, "", parameters, outputs, size, received,
                        ragged, None, number, model,
                    )
                )  # fmt: skip
                tickets[number] = ticket
                if ticket.ended:
                    self.ended(ticket)
                else:
                    ticket.watcher = self
        except (KeyError, IndexError):
            raise Scribbled("sent requests of a form that it has not described, or without their elements") from None
        if at != len(data):
            raise Scribbled("sent more elements than its requests have")

    def _rare(
        self, claims: Claims, kind: Kind, inputs: dict[str, Tensor], rare: hop.Rare | None
    ) -> tuple[bytes | None, dict[str, Any] | None, Ragged | None]:
        group = claims.group(kind, inputs, rare)
        return (group, None, None) if rare is None else (group, rare.parameters, claims.ragged(kind, rare))

    def _inputs(
        self, model: CoreModel, claims: Claims, kind: Kind, number: int, pieces: list[Any]
    ) -> dict[str, Tensor]:
        """The inputs of a request of any kind; the blocks in which they lie are kept for it. Raises Scribbled."""
        if len(pieces) != len(kind.inputs):
            raise Scribbled("sent requests without their elements")
        inputs = {
            item.name: claims.tensor(item, piece, self._view) for item, piece in zip(kind.inputs, pieces, strict=True)
        }
        blocks = [hop.Place.read(piece).block for piece in pieces if type(piece) is msgspec.msgpack.Ext]
        if blocks:
            self._lent[number] = blocks
            if model.copies():
                inputs = {name: tensor.owned() for name, tensor in inputs.items()}
        return inputs

    def _view(self, place: hop.Place) -> memoryview:
        """The front's memory that a place names. Raises Scribbled."""
        view = self._maps.get(place.segment)
        if view is None:
            view = self._attach(place.segment)
        if place.offset + place.size > len(view):
            raise Scribbled("sent elements that lie outside of its memory")
        return view[place.offset : place.offset + place.size]

    def _attach(self, segment: int) -> memoryview:
        """Take segments that were handed over until this one is among them. Raises Scribbled."""
        while segment not in self._maps:
            try:
                handed = channel.receive_segment(self._control)
            except BlockingIOError:
                handed = None
            if handed is None or len(self._maps) >= _MAX_SEGMENTS:
                raise Scribbled("spoke of memory that it has not handed over")
            try:
                self._maps[handed.id] = memoryview(host.attach_foreign(handed.fd, handed.size))
            except (OSError, ValueError) as error:
                raise Scribbled(f"handed over memory that is none ({error})") from None
            finally:
                os.close(handed.fd)
        return self._maps[segment]

    # ------------------------------------------------------------------ what the pool says

    def piece(self, ticket: Ticket, chunk: Chunk) -> None:
        raise NotImplementedError

    def ended(self, ticket: Ticket) -> None:
        """Note an answer for the frame that ends this turn. The arrays die when this returns."""
        request: Any = ticket.request
        number = request.number
        del self.tickets[number]
        if self._lent:
            self._let_go(ticket, number)
        if ticket.error is not None:
            self._say_error(number, ticket.error)
            return
        result: Result = ticket.result  # type: ignore[assignment]
        if result.batch is not self._batch:
            failure = self._begin(result, request)
            if failure is not None:
                self._fail_ticket(ticket, result.batch, number, failure)
                return
        if self._special:
            result = self._specially(ticket, result, request)
        self._numbers.append(number)
        self._results.append(result)

    def _specially(self, ticket: Ticket, result: Result, request: Hopped) -> Result:
        """See to an answer that is large, or of which the front has to tell whether it could be written."""
        batch = result.batch
        if self._answers.doubtful:
            ticket.error = _TO_BE_TOLD
            batch.unwritten.append(ticket)
            served = request.model.served
            self._unsettled[request.number] = (served.name, served.version, ticket.submitted_at)
        if self._own is None:
            return result
        return Result(batch, *self._own.add(result), result.whole, result.queue_seconds)

    def _say_error(self, number: int, error: MaitredError) -> None:
        self._says.errors.append((number, error.code, hop.clean(error.message), error.retry_after_seconds))
        if not self._scheduled:
            self.turn_soon()

    def _fail_ticket(self, ticket: Ticket, batch: Outputs, number: int, error: MaitredError) -> None:
        """An answer that cannot be carried to the front."""
        ticket.error = error
        batch.unwritten.append(ticket)
        self._say_error(number, error)

    def _begin(self, result: Result, request: Hopped) -> MaitredError | None:
        """Put the answers of another batch together; why that cannot be done, or None."""
        self._settle()
        batch = result.batch
        try:
            known = batch.memo.get(_MEMO)
            if known is None:
                known = batch.memo[_MEMO] = (packed(batch), request.model.claims.doubtful(batch))
            tensors, doubtful = known
            own = None if tensors is not None else OwnRows(batch, self)
        except NoMemory:
            return NoReplica("there was no memory for this answer; send the request again")
        except UnicodeEncodeError:
            return ModelFault("the model returned text that is not valid Unicode")
        except Exception:
            log.exception("the answers of a batch could not be put together")
            return defect()
        self._batch, self._own, self._special = batch, own, doubtful or own is not None
        self._answers = hop.Answers(
            tensors or msgspec.Raw(), batch.rows, batch.model_seconds, batch.batch_seconds, result.whole, doubtful
        )
        self._numbers, self._results = self._answers.numbers, []
        if not self._scheduled:
            self.turn_soon()
        return None

    def _settle(self) -> None:
        """The answers of the batch that was last begun are complete."""
        if self._batch is None:
            return
        answers, own, results = self._answers, self._own, self._results
        self._batch = self._own = None
        answers.starts, answers.stops = list(map(_start_of, results)), list(map(_stop_of, results))
        answers.queued = list(map(_queued_of, results))
        self._results = []
        if own is not None:
            try:
                answers.tensors, answers.rows = own.tensors(self), own.rows
            except NoMemory as error:
                log.error("answers were lost on their way to a front: %s", error)
                own.give_back(self)
                for number in answers.numbers:
                    self._say_error(number, NoReplica("there was no memory for this answer; send the request again"))
                return
        self._says.answers.append(answers)

    def _let_go(self, ticket: Ticket, number: int) -> None:
        """Nobody reads this request's inputs in the front's memory any more."""
        blocks = self._lent.pop(number, None)
        if blocks is None:
            return
        if ticket.attempts:  # its fingerprint may be wanted once more, should it have lost a replica
            request = ticket.request
            request.inputs = {name: tensor.owned() for name, tensor in request.inputs.items()}
        self._says.freed += blocks
        if not self._scheduled:
            self.turn_soon()

    # ------------------------------------------------------------------ what is said

    def turn_soon(self) -> None:
        """Have a frame written at the end of this turn of the loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        self._settle()
        says, self._says = self._says, hop.FromCore()
        says.least, says.elsewhere = self.least, self.elsewhere
        try:
            self._writer.send(hop.encode(says))
        except Clogged as error:
            self._fail(str(error))
        except Exception:  # a defect of ours; those who wait for these answers must not wait for ever
            log.exception("a front could not be told what was due")
            self._fail("was owed what the line before tells of")

    def greet(self, hello: hop.Hello) -> None:
        """Say the first words."""
        self._writer.send(hop.encode(hello))

    def ping(self, number: int) -> None:
        self._says.ping = number
        if number % hop.TIDY_PINGS == 0:
            self._arena.look()
        self.turn_soon()

    def show(self, snapshot: hop.Snapshot) -> None:
        """Have the front show this from now on."""
        self._says.snapshot = snapshot
        self.turn_soon()

    def page(self, number: int, text: str) -> None:
        """The page of metrics that it has asked for."""
        self._says.pages.append((number, text))
        self.turn_soon()

    def stop(self, within_seconds: float) -> None:
        """Have it stop accepting, and answer what is there within so many seconds."""
        self._says.stop = within_seconds
        self.turn_soon()

    # ------------------------------------------------------------------ memory for answers

    def take(self, size: int) -> tuple[int, Block]:
        """A block for answers, which the front gives back by its number. Raises NoMemory."""
        block = self._arena.take(size)
        self._block_number += 1
        self._blocks[self._block_number] = block
        segment = block.segment
        if segment.id not in self._shared:
            self._shared.add(segment.id)
            try:
                channel.send_segment(self._control, False, segment.id, segment.size, segment.fd)
            except OSError:  # it has gone, which the watch will tell
                log.debug("a segment could not be handed to a front")
        return self._block_number, block

    def done(self, numbers: list[int]) -> None:
        """Take blocks back. Raises Scribbled."""
        for number in numbers:
            block = self._blocks.pop(number, None)
            if block is None:
                raise Scribbled("gave back memory that it did not have")
            self._arena.give(block)

    def _retired(self, segment: int) -> None:
        """Have the front let go of memory that has been given back here."""
        if segment in self._shared:
            self._shared.discard(segment)
            self._says.retired.append(segment)
            self.turn_soon()

    def listed(self, items: list[Any]) -> Any:
        """Texts as they travel: here, or in memory of their own where they are many. Raises NoMemory."""
        data = hop.encode(items)
        if len(data) <= INLINE_BYTES:
            return msgspec.Raw(data)
        number, block = self.take(len(data))
        block.map[block.offset : block.offset + len(data)] = data
        return hop.Place(number, block.segment.id, block.offset, len(data)).packed()

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """The front has ended: what it said before still counts; then close."""
        while not self._closed and self._read():
            pass
        if not self._closed:
            self._loop.remove_reader(self._reading)
            self.close()

    def close(self) -> None:
        """Cancel what it has asked for and not been answered: nobody wants it any more."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        tickets = list(self.tickets.values())
        self.tickets.clear()
        for ticket in tickets:
            ticket.watcher = None
            ticket.cancel()
        for model, version, submitted_at in self._unsettled.values():
            self._listener(RequestEnded(model, version, "cancelled", self._clock() - submitted_at))
        self._unsettled.clear()
        self._lent.clear()
        self._batch = self._own = None
        self._maps.clear()  # a request that still runs keeps what it looks at
        self._blocks.clear()
        self._arena.close()
