"""Who said that code which comes with a model may run here, and why: kept on the operator's side, by version digest."""

from __future__ import annotations

import datetime
import fcntl
import getpass
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Final

import msgspec
import tomli_w

from maitred.model.refusals import LoadRefused, Untrusted

FILE: Final = "trust.toml"


class Trust(msgspec.Struct, frozen=True):
    """One decision. It never lies inside an artifact: whoever ships code could ship its permission too."""

    who: str
    why: str
    at: str = ""
    """When, as an ISO 8601 date and time; empty for one that was given for this load only."""

    @classmethod
    def stated(cls, text: str) -> Trust:
        """From a command line: `WHO: WHY`, or `WHY` alone, which is signed with the name of the current user.

        Raises `ValueError` where no reason is given.
        """
        who, separator, why = text.partition(":")
        if not separator:
            who, why = current_user(), text
        if not who.strip() or not why.strip():
            raise ValueError("trust needs a reason, and who gives it: --trust 'WHO: WHY'")
        return cls(who.strip(), why.strip())


class TrustStore:
    """The recorded decisions: one TOML file that only the operator can write."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or home() / FILE

    def find(self, version: str) -> Trust | None:
        """The decision for this version digest. Raises `LoadRefused` if the file cannot be read."""
        return self.all().get(version)

    def all(self) -> dict[str, Trust]:
        """Every decision by version digest."""
        try:
            table = tomllib.loads(self.path.read_text())
            return msgspec.convert(table, dict[str, Trust])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LoadRefused(f"the record of trusted models, {self.path.name}, cannot be read: {error}") from error

    def record(self, version: str, trust: Trust) -> Trust:
        """Remember the decision; a repeated one keeps the latest. Safe between processes, and against a crash."""
        dated = Trust(trust.who, trust.why, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_name(self.path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write({**self.all(), version: dated})
        return dated

    def forget(self, version: str) -> None:
        """Take the decision back."""
        with open(self.path.with_name(self.path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write({key: value for key, value in self.all().items() if key != version})

    def _write(self, decisions: dict[str, Trust]) -> None:
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(tomli_w.dumps(msgspec.to_builtins(decisions)).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, self.path)


def home() -> Path:
    """Where maitred keeps what belongs to this machine's operator: `$MAITRED_HOME`, else `~/.maitred`."""
    return Path(os.environ.get("MAITRED_HOME") or Path.home() / ".maitred")


def current_user() -> str:
    """The name that goes into a decision whose author is not stated."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return f"uid {os.getuid()}"


def require(reasons: tuple[str, ...], trust: Trust | None, isolated: bool) -> None:
    """Refuse what needs trust and has none, or has it and would load outside a process of its own.

    `reasons`: what of the artifact would run, one line each; none for data. Raises `Untrusted`, which lists them.
    """
    if not reasons:
        return
    listed = "; ".join(reasons)
    if trust is None:
        raise Untrusted(
            f"loading it could run code that comes with the model: {listed}. If you trust whoever made it, say so with "
            "--trust 'WHO: WHY'"
        )
    if not isolated:
        raise Untrusted(
            f"loading it could run code that comes with the model ({listed}), which is allowed only in a process of "
            "its own: use replicas of kind process (maitred.load(..., queue=True))"
        )
