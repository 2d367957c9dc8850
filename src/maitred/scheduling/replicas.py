"""Which replica takes the next batch."""

from __future__ import annotations

from maitred.scheduling.admission import Load


class Replica:
    """One loaded copy and how much of it is in use."""

    __slots__ = ("id", "room", "running", "leaving", "alone")

    def __init__(self, id: int, room: int) -> None:
        self.id = id
        self.room = room
        """Batches that it can run at once."""
        self.running = 0
        self.leaving = False
        """Takes no new batch, and is forgotten when it runs none."""
        self.alone = False
        """Runs one suspect and takes nothing else."""

    def free(self) -> int:
        return 0 if self.leaving or self.alone else self.room - self.running


class Replicas:
    """The copies of one pool; keeps `slots` and `room` of its load up to date."""

    __slots__ = ("_load", "_known", "_reserved")

    def __init__(self, load: Load) -> None:
        self._load = load
        self._known: dict[int, Replica] = {}
        self._reserved: Replica | None = None
        """Takes no new batch until it is idle: a suspect waits for it."""

    def __contains__(self, id: int) -> bool:
        return id in self._known

    def add(self, id: int, room: int) -> None:
        if id in self._known:
            raise ValueError(f"replica {id} was added before")
        self._known[id] = Replica(id, room)
        self._load.slots += room
        self._load.room += room

    def remove(self, id: int) -> None:
        """Unknown replicas are ignored."""
        replica = self._known.get(id)
        if replica is None or replica.leaving:
            return
        self._load.room -= replica.free()
        self._load.slots -= replica.room
        replica.leaving = True
        self._forget_if_gone(replica)

    def start(self, replica: Replica, alone: bool) -> None:
        """A replica begins a batch; `alone`: it is idle and takes nothing else meanwhile."""
        if alone:
            self._load.room -= replica.room
            replica.alone = True
            self._reserved = None
        else:
            self._load.room -= 1
        replica.running += 1

    def end(self, id: int) -> None:
        """A batch of a replica is over."""
        replica = self._known[id]
        replica.running -= 1
        if replica.leaving:
            replica.alone = False
            self._forget_if_gone(replica)
        elif replica.alone:
            replica.alone = False
            self._load.room += replica.room - replica.running
        else:
            self._load.room += 1

    def pick(self) -> Replica | None:
        """The one that takes the next batch: an idle one, else the one with the fewest running; None if none may."""
        best: Replica | None = None
        for replica in self._known.values():
            if replica.leaving or replica.alone or replica.running >= replica.room or replica is self._reserved:
                continue
            if not replica.running:
                return replica
            if best is None or replica.running < best.running:
                best = replica
        return best

    def idle(self, picked: Replica | None) -> Replica | None:
        """One that runs nothing, for a suspect: the reserved one, or what `pick` gave."""
        reserved = self._reserved
        if reserved is not None and not reserved.running:
            return reserved
        return picked if picked is not None and not picked.running else None

    def reserve(self, wanted: bool) -> bool:
        """Keep a replica from taking more until it is idle, as long as that is wanted. True if one was let go on."""
        if not wanted and self._reserved is not None:
            self._reserved = None
            return True
        if wanted and self._reserved is None:
            candidates = [replica for replica in self._known.values() if not replica.leaving and not replica.alone]
            self._reserved = min(candidates, key=_running, default=None)
        return False

    def ready(self) -> int:
        return sum(not replica.leaving for replica in self._known.values())

    def idle_count(self) -> int:
        return sum(not replica.running and not replica.leaving for replica in self._known.values())

    def _forget_if_gone(self, replica: Replica) -> None:
        if replica is self._reserved:
            self._reserved = None
        if not replica.running:
            del self._known[replica.id]


def _running(replica: Replica) -> int:
    return replica.running
