"""Builds the house from settings: the one file that knows every room."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from starlette.types import ASGIApp

from maitred.clock import monotonic
from maitred.deployment.router import Router, Served
from maitred.events import BatchEnded, Event
from maitred.gateway.admin import BadToken, admin, ensure_token
from maitred.gateway.apart import Apart
from maitred.gateway.bodies import Bodies
from maitred.gateway.fronts import FrontLost, Fronts, FrontsSettings, is_settled
from maitred.gateway.rest import Rest
from maitred.gateway.settings import GatewaySettings
from maitred.gateway.site import site
from maitred.host import memory_limit, processors
from maitred.http.aside import Aside
from maitred.http.limits import Limits
from maitred.http.server import Server
from maitred.loop import run
from maitred.model.description import Description
from maitred.model.inspect import curl_line
from maitred.model.loading import describe
from maitred.model.refusals import Corrupt, LoadRefused, NotAnArtifact, NotFound
from maitred.model.source import Source
from maitred.observe.logs import EventLog
from maitred.observe.metrics import Metrics
from maitred.pool.build import build_pool
from maitred.pool.kinds import Choice
from maitred.pool.pool import Pool
from maitred.pool.settings import SupervisorSettings
from maitred.replica.replica import ReplicaSettings
from maitred.scheduling.dispatcher import DispatchSettings
from maitred.settings import Address, HttpSettings, ModelSettings, ServerSettings, SettingsError

log = logging.getLogger("maitred")

PATH_VERSION = "1"
"""The version that a model served from a path has."""

_MOST_INFLIGHT_BYTES = 1 << 30

METRICS_SECONDS = 10.0
"""How long a page of metrics may take to write."""


def serve(settings: ServerSettings, announce: Callable[[str], None]) -> int:
    """Serve until a signal comes; the process's exit code. `announce` gets the base URL, then a curl line."""

    async def live() -> int:
        return await House(settings).live(announce)

    return run(live())


class CannotListen(Exception):
    """An address that cannot be listened on. The message names it, the setting, and what is wrong."""


class House:
    """A whole server on the running loop: pools, router, data port, admin port."""

    def __init__(self, settings: ServerSettings) -> None:
        """Call it on the loop on which the house is to stand."""
        self.settings = settings
        self.router = Router()
        self.metrics = Metrics()
        self._event_log = EventLog(log)
        self._pools: list[Pool] = []
        self._server: Server | Fronts | None = None
        self._admin: Server | None = None
        self._fronts: Fronts | None = None
        self.bodies: Bodies | None = None
        """Large bodies in flight; each front has its own."""
        self._asides: list[Aside] = []
        self._apart = Apart()
        self._looks: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._interrupted = False

    @property
    def url(self) -> str:
        """Where the data port is reached from this machine."""
        return self._server.url if self._server is not None else ""

    @property
    def port(self) -> int:
        """The data port's number; 0 before the start."""
        return self._server.port if self._server is not None else 0

    @property
    def admin_port(self) -> int:
        return self._admin.port if self._admin is not None else 0

    def replica_pids(self) -> list[int]:
        """Processes of the replicas that are ready."""
        return [pid for pool in self._pools for pid in pool.pids()]

    def front_pids(self) -> list[int]:
        """Processes of the fronts; empty where this one owns the connections."""
        return [] if self._fronts is None else self._fronts.pids()

    def running_rows(self) -> int:
        return sum(pool.snapshot().running_rows for pool in self._pools)

    async def live(self, announce: Callable[[str], None]) -> int:
        """Start, tell, wait for a signal, drain; the exit code. Ends at once where no model at all can be loaded."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled, number)
        try:
            await self.start()
        except (OSError, BadToken, CannotListen, FrontLost) as error:
            log.error("cannot start: %s", error)
            await self.stop(0.0)
            return 1
        announce(self.url)
        await self.settled()
        models = self.router.all()
        if models and all(served.state == "failed" for served in models):
            log.error("nothing is served, for no model could be loaded")  # each has been told of with its reason
            await self.stop(0.0)
            return 1
        for served in models:
            if served.state != "failed" and served.description is not None:
                announce(curl_line(self.url, served.name, served.description))
        await self._stopping.wait()
        await self._drain()
        return 0

    async def start(self) -> None:
        """Listen, and start the replicas; requests are answered as models become ready.

        Raises CannotListen, OSError, BadToken or FrontLost.
        """
        settings = self.settings
        self.router.swap({name: self._open(model) for name, model in settings.models.items()})
        public = not settings.listen.loopback
        gateway = GatewaySettings(
            deadlines={name: model.deadline_seconds for name, model in settings.models.items()},
            repository_control=settings.allow_repository_control and not public,
        )
        limits = _limits(settings.http)
        self._server = self._data_port(gateway, limits, public)
        await self._open_port(self._server, settings.listen, "listen")
        token = ensure_token(settings.home)
        self._admin = Server(self._beside(admin(token, self._metrics_page)), limits)
        await self._open_port(self._admin, settings.admin_listen, "admin_listen")
        if public:
            log.warning("the data port is public and nothing checks who asks: put it behind something that does")
        self.metrics.pools = lambda: [pool.snapshot() for pool in self._pools]
        self.metrics.add_gauge("maitred_http_connections", "Open connections of the data port.", self._connections)
        for pool in self._pools:
            pool.launch()
        if self._fronts is not None:
            await self._fronts.up()
        self._look()

    def _data_port(self, gateway: GatewaySettings, limits: Limits, public: bool) -> Server | Fronts:
        """What owns the data port's connections: this process, or fronts."""
        settings = self.settings
        inflight = inflight_bytes(settings.http, memory_limit())
        if settings.fronts == 1:
            pages = self._beside(site(self.router, None if public else self._metrics_page))
            rest = Rest(self.router, gateway, pages, listener=self._listen, apart=self._apart)
            bodies = self.bodies = Bodies(self.router, inflight, self._loop)
            self.metrics.add_gauge(
                "maitred_http_body_bytes",
                "Bytes of large bodies that are being received, wait or run.",
                lambda: float(bodies.used_bytes),
            )
            return Server(rest, limits, refused=self.metrics.refused, bodies=bodies)
        page = None if public else self._page
        self._fronts = fronts = Fronts(
            FrontsSettings(settings.fronts, inflight), self.router, gateway, limits, page, self._listen,
            self.metrics.refused,
        )  # fmt: skip
        self.metrics.add_gauge("maitred_fronts", "Processes that own the data port's connections.", fronts.standing)
        return fronts

    async def _open_port(self, server: Server | Fronts, address: Address, setting: str) -> None:
        """Raises CannotListen."""
        try:
            await server.start(address.host, address.port)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name that DNS could know
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            flag = f"--{setting.replace('_', '-')}"
            origin = self.settings.origin(setting)
            given = "" if origin in (flag, "default") else f", from {origin}"
            raise CannotListen(
                f"cannot listen on {address} (`{setting}`{given}): {reason}; give another address with {flag} HOST:PORT"
            ) from error

    async def stop(self, drain_seconds: float) -> None:
        """Stop listening, answer what is here within `drain_seconds`, then stop replicas and the admin port."""
        self.router.draining = True
        end = monotonic() + drain_seconds
        if self._server is not None and self._server.port:
            cut_off = await self._server.stop(drain_seconds)
            if cut_off:
                log.warning(
                    "%d requests were cut off: they took longer than the %g s of the drain", cut_off, drain_seconds
                )
        await asyncio.gather(*(pool.drain(max(0.0, end - monotonic())) for pool in self._pools))
        if self._fronts is not None:
            await self._fronts.close()
        if self._looks is not None:
            self._looks.cancel()
        if self._admin is not None and self._admin.port:
            await self._admin.stop(0.0)
        self._apart.close()
        for aside in self._asides:
            await aside.close()

    async def _drain(self) -> None:
        """Say no to readiness checks, keep listening for a while, then stop. A second signal skips the rest."""
        self.router.draining = True
        assert self._server is not None
        self._server.begin_drain()
        log.info("stopping: no longer ready, then closed once what runs has ended")
        if not self._interrupted:  # who presses Ctrl-C has no load balancer that must notice first
            await self._unless_hurried(self.settings.drain_notice_seconds)
        stop = asyncio.ensure_future(self.stop(self.settings.drain_seconds))
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({stop, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stop.done():
            stop.cancel()
            await asyncio.wait({stop})
            await self.stop(0.0)
        else:
            stop.result()  # what went wrong while stopping is not to be lost

    async def _unless_hurried(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._hurry.wait(), seconds)
        except TimeoutError:
            return

    def _signalled(self, number: int) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._interrupted = number == signal.SIGINT
        self._stopping.set()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until every model is ready or has failed, or a signal to stop comes."""
        while any(served.state == "loading" for served in self.router.all()) and not self._stopping.is_set():
            self._changed.clear()
            await self._changed.wait()
        if self._fronts is not None:
            await self._fronts.shown()

    def _beside(self, app: ASGIApp) -> Aside:
        """An application on a loop and thread of its own."""
        aside = Aside(app)
        self._asides.append(aside)
        return aside

    def _metrics_page(self) -> str:
        """Called on the pages' thread; what it shows belongs to the pools' loop, so it is written there."""

        async def written() -> str:
            return self._page()

        return asyncio.run_coroutine_threadsafe(written(), self._loop).result(METRICS_SECONDS)

    def _page(self) -> str:
        return self.metrics.page()[0].decode()

    def _noticed(self, served: Served) -> None:
        """A model became something else."""
        if served.state == "failed":
            log.error("model %s has failed, and is not started again: %s", served.name, served.reason)
        elif served.state == "ready":
            for warning in served.known().warnings:
                log.warning("model %s: %s", served.name, warning)
        if self._fronts is not None:
            self._fronts.changed()
        self._changed.set()

    def _placed(self, served: Served, choice: Choice, tell: bool) -> None:
        """Where a model runs has been settled. What the operator has set need not be told."""
        served.place = str(choice)
        if self._fronts is not None:
            self._fronts.changed()
        if tell:
            log.info("model %s: %s", served.name, choice)

    def _connections(self) -> float:
        return float(self._server.connections) if self._server is not None else 0.0

    def _look(self) -> None:
        self.metrics.look()
        self._looks = self._loop.call_later(1.0, self._look)

    def _listen(self, event: Event) -> None:
        self.metrics(event)
        if type(event) is not BatchEnded or event.outcome != "ok":
            self._event_log(event)

    def _listen_settled(self, event: Event) -> None:
        """As `_listen`, for pools that fronts ask."""
        if is_settled(event):
            self._listen(event)

    def _open(self, model: ModelSettings) -> Served:
        """A model's place in the router, and the pool behind it."""
        replicas, pool_settings = model.replicas, model.pool
        fronts = self.settings.fronts if self.settings.fronts > 1 else 0
        threads = replicas.threads_each(processors() - fronts)
        source = Source(
            path=model.source,
            name=model.name,
            trust=model.trust,
            versions=model.versions,
            options=model.options,
            trust_file=str(self.settings.home / "trust.toml"),
        )
        described = self._described(model, source)
        log.info("model %s: copies %d, threads of each %d", model.name, replicas.max, threads)
        served = Served(model.name, PATH_VERSION)
        served.noticed = lambda: self._noticed(served)
        pool = build_pool(
            source,
            PATH_VERSION,
            replicas.kind,
            DispatchSettings(
                max_batch_rows=pool_settings.max_batch_rows,
                max_waiting_rows=pool_settings.max_waiting_rows,
                max_waiting_bytes=pool_settings.max_waiting_bytes,
                deadline_seconds=pool_settings.deadline_seconds,
                guaranteed_share=pool_settings.guaranteed_share,
                background_seconds=pool_settings.background_seconds,
                keep_free=pool_settings.keep_free,
            ),
            SupervisorSettings(
                replicas=replicas.max,
                max_execution_seconds=pool_settings.max_execution_seconds,
                restart_seconds=pool_settings.restart_seconds,
                max_restart_seconds=pool_settings.max_restart_seconds,
            ),
            ReplicaSettings(
                device=replicas.device,
                max_batch_rows=pool_settings.max_batch_rows,
                threads=threads,
                load_seconds=replicas.start_seconds,
            ),
            served,
            self._loop,
            self._listen if self.settings.fronts == 1 else self._listen_settled,
            placed=lambda choice: self._placed(served, choice, replicas.kind == "auto"),
        )
        if described is not None:
            pool.know(described)
        served.endpoint, served.description = pool, described
        served.memory = lambda: pool.memory
        self._pools.append(pool)
        return served

    def _described(self, model: ModelSettings, source: Source) -> Description | None:
        """As `describe`, but what is refused is told with its place in the settings. Raises SettingsError."""
        try:
            return describe(source)
        except LoadRefused as error:
            named = isinstance(error, (NotFound, NotAnArtifact, Corrupt))
            key = f"models.{model.name}.source" if named else f"models.{model.name}"
            origin = self.settings.origins.get(key, "")
            raise SettingsError(error.message, key=key, origin=origin) from error


def inflight_bytes(http: HttpSettings, memory_bytes: int | None) -> int:
    """The bound on bodies in flight: what the settings say, else what suits a machine with so much memory."""
    if http.max_inflight_bytes is not None:
        return http.max_inflight_bytes
    return _MOST_INFLIGHT_BYTES if memory_bytes is None else min(_MOST_INFLIGHT_BYTES, memory_bytes // 4)


def _limits(http: HttpSettings) -> Limits:
    return Limits(
        head_bytes=http.max_head_bytes,
        headers=http.max_headers,
        body_bytes=http.max_body_bytes,
        first_byte_seconds=http.first_byte_seconds,
        header_seconds=http.header_seconds,
        idle_seconds=http.keep_alive_seconds,
        connections=http.max_connections,
        compress_from_bytes=http.compress_from_bytes,
    )
