"""One frozen record per room, and one loader that can say where each value came from.

The keys of `maitred.yaml` are the fields of these records; a flag wins over an environment variable, that over the
file, the file over the default.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import os
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Protocol

import msgspec
import yaml
from msgspec import Meta

from maitred.spelling import nearest

KeyPath = tuple[str, ...]
"""A setting's keys from the root: ("models", "churn", "batching", "max_batch_rows")."""

Rows = Annotated[int, Meta(ge=1, le=1 << 20)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40)]
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
Few = Annotated[int, Meta(ge=0, le=4096)]
Some = Annotated[int, Meta(ge=1, le=4096)]
Processes = Annotated[int, Meta(ge=1, le=64)]
Threads = Annotated[int, Meta(ge=1, le=1024)]
Share = Annotated[float, Meta(ge=0, le=0.33)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Pause = Annotated[float, Meta(ge=0, le=86_400)]
Text = Annotated[str, Meta(min_length=1)]
Options = dict[str, typing.Any]

KEEP_FREE_FROM_REPLICAS: Final = 4
"""From so many replicas on, one is kept free of background work unless `keep_free` says otherwise."""

MAX_FILE_BYTES: Final = 1 << 20


class SettingsError(Exception):
    """A setting that cannot be used. The text is one line: where it stands, its key, and what was expected."""

    def __init__(self, message: str, *, key: str = "", origin: str = "") -> None:
        super().__init__(": ".join(part for part in (origin, key, message) if part))
        self.message = message
        self.key = key
        self.origin = origin


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 takes any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`HOST:PORT` or `[IPV6]:PORT`; raises ValueError."""
        match = re.fullmatch(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})", text)
        if match is None or int(match["port"]) > 65535:
            raise ValueError(text)
        return cls(match["six"] or match["host"], int(match["port"]))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSettings:
    """What callers were promised."""

    p99_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """How many copies of a model there are, and where each of them runs."""

    kind: Literal["auto", "process", "thread", "inline"] = "auto"
    """`auto`: a process, unless the model is a native library's and was measured to take microseconds: then `inline`.

    Threads and the loop itself cannot be killed or give memory back.
    """
    min: Some = 1
    max: Some = 1
    """Given alone it leaves `min` at 1; where only `min` is given it equals that."""
    threads: Threads | Literal["auto"] = "auto"
    """Threads that the numeric libraries of one replica may use; `auto`: `threads_each` of the machine's processors."""
    device: Text = "cpu"
    start_seconds: Seconds = 300.0
    """How long loading and warming up may take before the replica is given up."""
    max_execution_seconds: Seconds = 60.0
    """How long one batch may run before its replica counts as hung and is killed."""
    restart_seconds: Pause = 0.2
    """Wait before a lost replica is started again; doubled each time it fails at once."""
    max_restart_seconds: Seconds = 30.0
    """That wait grows no further than this."""

    def threads_each(self, processors: int) -> int:
        """Threads of each replica where the server may keep so many processors busy.

        `auto` leaves one processor to the server itself and shares out the rest: at least one thread each.
        """
        return min(1024, max(1, (processors - 1) // self.max)) if self.threads == "auto" else self.threads


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """How requests wait and are put together."""

    max_batch_rows: Rows = 64
    max_waiting_rows: Rows = 4096
    max_waiting_bytes: Bytes = 256 << 20
    background_seconds: Seconds | None = None
    """Longest batch that background work may form or join; left out: a tenth of `slo.p99_seconds`, else 10 ms."""
    keep_free: Few | None = None
    """Replicas that background work leaves alone; left out: none of up to three, one of four or more."""
    guaranteed_share: Share = 0.05
    """Share of the rows that a lower lane gets although a better one waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What one pool needs: the settings of a model with every rule for what was left out applied."""

    max_batch_rows: int = 64
    max_waiting_rows: int = 4096
    max_waiting_bytes: int = 256 << 20
    deadline_seconds: float = 30.0
    background_seconds: float = 0.01
    keep_free: int = 0
    guaranteed_share: float = 0.05
    max_execution_seconds: float = 60.0
    restart_seconds: float = 0.2
    max_restart_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One name that callers use, and the model behind it."""

    name: str = field(metadata={"key": False})
    source: Text
    """A path (in a file: as seen from that file's folder), or `package.module:Class`."""
    replicas: ReplicaSettings = ReplicaSettings()
    batching: BatchingSettings = BatchingSettings()
    deadline_seconds: Seconds = 30.0
    """For requests that state no deadline of their own."""
    slo: SloSettings = SloSettings()
    trust: Text | None = None
    """`WHO: WHY` code that comes with the artifact, pickles included, may run; left out: it may not."""
    versions: Literal["refuse", "warn", "ignore"] = "refuse"
    """What happens where the installed libraries differ from those that the artifact was saved with."""
    options: Options = field(default_factory=dict)
    """Settings of the model's flavor, over those that it was packed with."""

    @property
    def pool(self) -> PoolSettings:
        """The same choices as the pool wants them."""
        batching, replicas = self.batching, self.replicas
        background = batching.background_seconds
        if background is None:
            background = 0.01 if self.slo.p99_seconds is None else self.slo.p99_seconds / 10
        keep_free = batching.keep_free
        if keep_free is None:
            keep_free = 1 if replicas.max >= KEEP_FREE_FROM_REPLICAS else 0
        return PoolSettings(
            max_batch_rows=batching.max_batch_rows,
            max_waiting_rows=batching.max_waiting_rows,
            max_waiting_bytes=batching.max_waiting_bytes,
            deadline_seconds=self.deadline_seconds,
            background_seconds=background,
            keep_free=keep_free,
            guaranteed_share=batching.guaranteed_share,
            max_execution_seconds=replicas.max_execution_seconds,
            restart_seconds=replicas.restart_seconds,
            max_restart_seconds=replicas.max_restart_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds on what a connection may make big or slow."""

    max_body_bytes: Bytes = 64 << 20
    """After inflation too."""
    max_inflight_bytes: Bytes | None = None
    """Of bodies above 64 KiB, from their first bytes to their answer; left out: a quarter of the memory that the server
    may use, and at most 1 GiB."""
    max_head_bytes: Bytes = 64 << 10
    max_headers: Count = 100
    header_seconds: Seconds = 30.0
    """From a request's first byte to the end of its head."""
    keep_alive_seconds: Seconds = 75.0
    """How long a connection may idle between requests."""
    first_byte_seconds: Seconds = 30.0
    """How long a new connection may stay silent."""
    max_connections: Count = 10_000
    compress_from_bytes: Bytes = 1024
    """Shorter answers are never compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything that `maitred serve` needs; only `assemble` looks at all of it."""

    listen: Address = Address("127.0.0.1", 8080)
    admin_listen: Address = Address("127.0.0.1", 8081)
    home: Path = Path("~/.maitred")
    """Where the server keeps its own files, the admin token among them; `~` is expanded by the loader."""
    fronts: Processes = 1
    """Processes that own the data port's connections; with 1 it is the one that schedules, too."""
    drain_notice_seconds: Pause = 5.0
    """After the signal to stop: how long it still takes requests while readiness says no."""
    drain_seconds: Pause = 30.0
    """After that: how long running requests may take to end."""
    allow_repository_control: bool = False
    """Whether the data port loads and unloads models; on loopback only."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    http: HttpSettings = HttpSettings()
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, metadata={"key": False})

    def origin(self, key: str) -> str:
        """Where a value came from: `maitred.yaml:7:25`, `--listen`, `MAITRED_LISTEN` or `default`."""
        return self.origins.get(key, "default")


ENVIRONMENT: Final[Mapping[str, KeyPath | None]] = {
    "MAITRED_HOME": ("home",),
    "MAITRED_LISTEN": ("listen",),
    "MAITRED_ADMIN_LISTEN": ("admin_listen",),
    "MAITRED_LOG_LEVEL": ("log_level",),
    "MAITRED_LOG_FORMAT": ("log_format",),
    "MAITRED_THREADS": None,  # of native libraries in your own process; a server's copies have `replicas.threads`
    "MAITRED_PORTABLE": None,  # 1: use only what every system has, as elsewhere than on Linux
    "MAITRED_LOOP": None,  # on which event loop the tests run
}
"""Every environment variable of ours, and what it sets; None where the code looks for it itself. An empty one counts as
not there."""

PREFIX: Final = "MAITRED_"
"""What all of them begin with, and others should not."""

_KUBERNETES: Final = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""After the prefix: what Kubernetes sets in every container where there is a service named after us."""

EVERY_MODEL: Final = "*"
"""Stands in an override's key for the name of each model."""


class Given(NamedTuple):
    """A value that somebody gave, and who."""

    value: Any
    origin: str
    text: bool = False
    """True where the value is written text whose meaning the setting's type decides."""


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """The names that look like ours and mean nothing, each with the one that may be meant: `X (did you mean Y?)`."""
    known = [variable.removeprefix(PREFIX) for variable in ENVIRONMENT]
    found = []
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known or not text or _KUBERNETES.fullmatch(name):
            continue
        if name.endswith("PORT") and "://" in text:
            continue  # Kubernetes too
        close = nearest(name, known)
        found.append(variable if close is None else f"{variable} (did you mean {PREFIX}{close}?)")
    return found


def load_settings(
    path: Path | None = None,
    overrides: Mapping[KeyPath, Given] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServerSettings:
    """The settings from a file, the environment and the command line; raises SettingsError for the first wrong one."""
    given = _read_file(path) if path is not None else {}
    for variable, key in ENVIRONMENT.items():
        text = (environ or {}).get(variable, "")
        if text and key is not None:
            given[key] = Given(text, variable, True)
    given.update(_expanded(overrides or {}, given))
    settings: ServerSettings = _build(ServerSettings, (), given)
    origins = {".".join(key): value.origin for key, value in given.items()}
    settings = dataclasses.replace(settings, origins=origins)
    _check(settings)
    return settings


def _expanded(overrides: Mapping[KeyPath, Given], given: Mapping[KeyPath, Given]) -> dict[KeyPath, Given]:
    """The overrides with `*` replaced by each model that the file or another override names."""
    plain = {key: value for key, value in overrides.items() if EVERY_MODEL not in key}
    names = _names({**given, **plain})
    for key, value in overrides.items():
        if key[:2] == ("models", EVERY_MODEL):
            for name in names:
                plain.setdefault(("models", name, *key[2:]), value)
    return plain


def _names(given: Mapping[KeyPath, Given]) -> list[str]:
    return list(dict.fromkeys(key[1] for key in given if key[0] == "models" and len(key) > 1))


# --- records from values ---------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """One field of a record that can be set."""

    name: str
    kind: Any
    required: bool


def _keys(record: type) -> dict[str, _Key]:
    hints = typing.get_type_hints(record, include_extras=True)
    keys = {}
    for entry in dataclasses.fields(record):
        if entry.metadata.get("key", True):
            required = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
            keys[entry.name] = _Key(entry.name, hints[entry.name], required)
    return keys


def _section(kind: Any) -> type | None:
    """The record that a key's value is, or None for a single value."""
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind is not Address else None


def _each(kind: Any) -> type | None:
    """The record that each value of a mapping by name is, or None for other keys."""
    return typing.get_args(kind)[1] if typing.get_origin(kind) is Mapping else None


def _build(record: type, path: KeyPath, given: Mapping[KeyPath, Given]) -> Any:
    values: dict[str, Any] = {}
    for key in _keys(record).values():
        here = (*path, key.name)
        section, each = _section(key.kind), _each(key.kind)
        if section is not None:
            values[key.name] = _build(section, here, given)
        elif each is not None:
            values[key.name] = {name: _build(each, (*here, name), given) for name in _names(given)}
        elif here in given:
            values[key.name] = _decode(key.kind, here, given[here])
        elif key.required:
            where = given.get(path)
            raise SettingsError(
                f"the key `{key.name}` is missing", key=".".join(path), origin=where.origin if where else ""
            )
    if record is ModelSettings:
        values["name"] = path[-1]
    if record is ReplicaSettings and "min" in values:
        values.setdefault("max", values["min"])
    if record is ServerSettings:
        values["home"] = values.get("home", ServerSettings().home).expanduser()
    return record(**values)


def _decode(kind: Any, path: KeyPath, given: Given) -> Any:
    """One value in the type that its key wants."""
    value = given.value
    try:
        if kind is Address:
            return value if isinstance(value, Address) else Address.parse(msgspec.convert(value, str))
        if kind is Path:
            return Path(value) if isinstance(value, Path) else Path(msgspec.convert(value, Text))
        decoded = msgspec.convert(value, kind, strict=not given.text)
        if isinstance(decoded, float) and not math.isfinite(decoded):
            raise ValueError(value)
        return decoded
    except (msgspec.ValidationError, ValueError):
        message = f"expected {_expected(kind, path[-1])}, got {_shown(value)}"
        raise SettingsError(message, key=".".join(path), origin=given.origin) from None


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expected(kind: Any, name: str) -> str:
    """What a key accepts, in words."""
    if kind is Address:
        return "HOST:PORT with a port from 0 to 65535"
    if kind is Path:
        return "a path"
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.UnionType):
        return ", or ".join(_expected(one, name) for one in typing.get_args(kind) if one is not type(None))
    if isinstance(info, msgspec.inspect.DictType):
        return "keys and values"
    if isinstance(info, msgspec.inspect.BoolType):
        return "true or false"
    if isinstance(info, msgspec.inspect.LiteralType):
        choices = typing.get_args(kind)
        return "one of " + ", ".join(choices) if len(choices) > 1 else str(choices[0])
    if isinstance(info, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
        words = "a whole number" if isinstance(info, msgspec.inspect.IntType) else "a number"
        unit = name.rpartition("_")[2]
        words += f" of {unit}" if unit in ("seconds", "bytes", "rows") else ""
        return f"{words} from {info.ge} to {info.le}" if info.ge is not None else f"{words} above 0, up to {info.le}"
    return "text"


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a model may be called; the same rule as in `model/names.py`, which this layer cannot see."""


def _check(settings: ServerSettings) -> None:
    """The rules that hold between settings."""

    def refuse(message: str, *keys: str) -> NoReturn:
        """Blames the first key, at the place of the first one that somebody gave."""
        origin = next((settings.origins[key] for key in keys if key in settings.origins), "")
        raise SettingsError(message, key=keys[0], origin=origin)

    for name, model in settings.models.items():
        key, replicas, batching = f"models.{name}", model.replicas, model.batching
        if NAME.fullmatch(name) is None:
            refuse("a name starts with a letter or digit and has up to 128 letters, digits, '.', '_' and '-'", key)
        if replicas.max < replicas.min:
            message = f"expected at least `min`, which is {replicas.min}, got {replicas.max}"
            refuse(message, f"{key}.replicas.max", f"{key}.replicas.min")
        if replicas.max_restart_seconds < replicas.restart_seconds:
            keys = f"{key}.replicas.max_restart_seconds", f"{key}.replicas.restart_seconds"
            refuse("expected at least `restart_seconds`", *keys)
        if batching.max_batch_rows > batching.max_waiting_rows:
            keys = f"{key}.batching.max_batch_rows", f"{key}.batching.max_waiting_rows"
            refuse("is more than `max_waiting_rows`, so no such batch could form", *keys)
    if settings.listen.port and settings.listen == settings.admin_listen:
        refuse(f"expected another address than `listen`, {settings.listen}", "admin_listen", "listen")
    if settings.allow_repository_control and not settings.listen.loopback:
        refuse(f"needs `listen` on loopback, and {settings.listen} is not", "allow_repository_control")


# --- values from a file ----------------------------------------------------------------------------------------------


def _read_file(path: Path) -> dict[KeyPath, Given]:
    """Every value in a YAML file by its keys; nothing in it can make an object or run code."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot be read: {os.strerror(error.errno or 0)}", origin=str(path)) from None
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"is larger than {MAX_FILE_BYTES} bytes", origin=str(path))
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise SettingsError(f"is not valid YAML: {error.problem or error.context}", origin=place) from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        reason = str(getattr(error, "reason", None) or "it cannot be decoded")
        raise SettingsError(f"is not valid YAML: {reason}", origin=str(path)) from None
    if root is None:
        return {}
    given = dict(_File(str(path)).values(typing.cast(_Node, root), ServerSettings, ()))
    for key, value in given.items():
        if key[0] == "models" and key[2:] == ("source",) and isinstance(value.value, str):
            given[key] = value._replace(value=_seen_from(path.parent, value.value))
    return given


def _seen_from(folder: Path, source: str) -> str:
    """A source that is a path, as seen from the folder of the file that names it."""
    if "/" in source or (source and (folder / source.partition(":")[0]).exists()):
        return str(folder / os.path.expanduser(source))
    return source


class _Node(Protocol):
    """What this file needs of PyYAML's nodes."""

    id: str
    """`scalar`, `sequence` or `mapping`."""
    tag: str
    value: Any
    style: str | None
    """Of a scalar: its quotes, or None for plain text."""
    start_mark: Any


class _File:
    """Walks a YAML tree along the records' keys."""

    def __init__(self, name: str) -> None:
        self._name = name

    def values(self, node: _Node, record: type, path: KeyPath) -> Iterator[tuple[KeyPath, Given]]:
        """The values below `node`, which is a section of the shape of `record`."""
        keys = _keys(record)
        for key, child in self._members(node, path):
            if key.value not in keys:
                self._unknown(key, path, keys)
            here, kind = (*path, key.value), keys[key.value].kind
            section, each = _section(kind), _each(kind)
            if section is not None:
                yield from self.values(child, section, here)
            elif kind == Options:
                yield here, Given(self._plain(child, here), self._place(child))
            elif each is not None:
                for name, entry in self._members(child, here):
                    yield (*here, name.value), Given(None, self._place(name))
                    yield from self.values(entry, each, (*here, name.value))
            else:
                yield here, self._single(child, kind, here)

    def _members(self, node: _Node, path: KeyPath) -> Iterator[tuple[_Node, _Node]]:
        """The pairs of a mapping; nothing for an empty section. Refuses other nodes, and keys that come twice."""
        if _empty(node):
            return
        if node.id != "mapping":
            example = _SUCH_AS.get(path[-1], "") if path else ""
            self._refuse(node, path, f"expected keys and values{example}, got {_described(node)}")
        seen: dict[str, _Node] = {}
        for key, child in node.value:
            if key.id != "scalar":
                self._refuse(key, path, "a key must be plain text")
            if key.value in seen:
                first = self._place(seen[key.value])
                self._refuse(key, (*path, key.value), f"is given twice; the first time at {first}")
            seen[key.value] = key
            yield key, child

    def _plain(self, node: _Node, path: KeyPath) -> Any:
        """What the node says, as Python's own values: whoever these are for knows what they mean."""
        if node.id == "mapping":
            return {key.value: self._plain(child, (*path, key.value)) for key, child in self._members(node, path)}
        if node.id == "sequence":
            return [self._plain(child, path) for child in node.value]
        self._single(node, str, path)
        return yaml.SafeLoader("").construct_object(node)

    def _single(self, node: _Node, kind: Any, path: KeyPath) -> Given:
        if node.id != "scalar":
            self._refuse(node, path, f"expected {_expected(kind, path[-1])}, got {_described(node)}")
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            self._refuse(node, path, f"tags such as {node.tag!r} are not used here")
        if _empty(node):
            return Given(None, self._place(node))
        return Given(node.value, self._place(node), node.style is None)

    def _unknown(self, key: _Node, path: KeyPath, keys: Mapping[str, _Key]) -> NoReturn:
        close = nearest(key.value, keys)
        hint = f"did you mean `{close}`?" if close else "known here: " + ", ".join(keys)
        self._refuse(key, (*path, key.value), f"unknown key; {hint}")

    def _place(self, node: _Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _refuse(self, node: _Node, path: KeyPath, message: str) -> NoReturn:
        raise SettingsError(message, key=".".join(path), origin=self._place(node))


_SUCH_AS: Final = {
    "replicas": ", such as {max: 2}", "batching": ", such as {max_batch_rows: 64}",
    "slo": ", such as {p99_seconds: 0.05}", "options": ", such as {threads: 2}",
}  # fmt: skip
"""What may be meant by a section, for whoever gives it a single value."""


def _empty(node: _Node) -> bool:
    return node.id == "scalar" and node.style is None and node.value in ("", "~", "null", "Null", "NULL")


def _described(node: _Node) -> str:
    kinds = {"sequence": "a list", "mapping": "keys and values"}
    return kinds.get(node.id) or _shown(node.value)
