"""The life of a replica: which event leads from which state to which."""

from __future__ import annotations

from typing import Final, Literal

State = Literal["new", "loading", "warming", "ready", "draining", "stopped", "failed"]
Move = Literal["launch", "loaded", "warmed", "stop", "ended", "lost"]
"""`stop`: somebody asked for the end. `ended`: it is gone after that. `lost`: it is gone and nobody asked."""

TABLE: Final[dict[tuple[State, Move], State]] = {
    ("new", "launch"): "loading",
    ("new", "stop"): "stopped",
    ("loading", "loaded"): "warming",
    ("loading", "stop"): "draining",
    ("loading", "lost"): "failed",
    ("warming", "warmed"): "ready",
    ("warming", "stop"): "draining",
    ("warming", "lost"): "failed",
    ("ready", "stop"): "draining",
    ("ready", "lost"): "failed",
    ("draining", "loaded"): "draining",
    ("draining", "warmed"): "draining",
    ("draining", "stop"): "draining",
    ("draining", "ended"): "stopped",
}
"""State and event to the next state; a replica that is `stopped` or `failed` stays so."""

OVER: Final[frozenset[State]] = frozenset({"stopped", "failed"})


class IllegalMove(RuntimeError):
    """An event that a replica in this state cannot meet: a defect of whoever drives it."""


def after(state: State, move: Move) -> State:
    """The state that `move` leads to. Raises IllegalMove where the table has none."""
    try:
        return TABLE[state, move]
    except KeyError:
        raise IllegalMove(f"a replica that is {state} cannot meet '{move}'") from None
