# SPDX-License-Identifier: Apache-2.0
"""One daemon, put together: the engine, two gRPC servers, the attach socket, and the clock that looks after them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from ultima.daemon.base.config import DaemonConfig
from ultima.daemon.base.errors import StartFailed
from ultima.daemon.base.quota import SHARE, Quota
from ultima.daemon.base.waiting import Changes, spawn
from ultima.daemon.engine.engine import Engine, EngineConfig
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.hosts.coordinator import Coordinator
from ultima.daemon.hosts.distance import RoundTrip, exchange
from ultima.daemon.hosts.former import NAME as MEETING_FILE
from ultima.daemon.hosts.former import Former
from ultima.daemon.hosts.host import fresh_number, target
from ultima.daemon.hosts.lines import Lines
from ultima.daemon.hosts.outgoing import own_end
from ultima.daemon.hosts.peers import OPTIONS, RESTORE_SECONDS, Peers
from ultima.daemon.hosts.watching import RETRY_SECONDS_MAX, Told
from ultima.daemon.jobs.hearing import Hearing
from ultima.daemon.jobs.job import Job
from ultima.daemon.jobs.relay_desk import RelayDesk
from ultima.daemon.jobs.routes import Routes
from ultima.daemon.jobs.table import JobTable
from ultima.daemon.jobs.tuning import Tuning
from ultima.daemon.jobs.watchers import Watchers
from ultima.daemon.observe.keeper import Keeper
from ultima.daemon.observe.metrics import Facts
from ultima.daemon.observe.progress import judge_all
from ultima.daemon.probe.initiators import Initiators
from ultima.daemon.process import memory_max, sdnotify
from ultima.daemon.process.address import check_port
from ultima.daemon.process.doorkeeper import IDLE, LOCAL_STREAMS_MAX, Doorkeeper, local_door, peer_door
from ultima.daemon.process.exposition import Exposition
from ultima.daemon.process.gauges import LOOK_SECONDS, Gauges
from ultima.daemon.process.news import Fresh, News
from ultima.daemon.process.relay_port import open_relay
from ultima.daemon.process.runtime_dir import RuntimeDir
from ultima.daemon.process.tidy import Tidy
from ultima.daemon.rpc.admin_service import AdminService
from ultima.daemon.rpc.cluster import Cluster
from ultima.daemon.rpc.examine import Examiner
from ultima.daemon.rpc.line_calls import LineCalls
from ultima.daemon.rpc.operator_calls import rendered
from ultima.daemon.rpc.peer_service import PeerService
from ultima.daemon.rpc.trainer_service import TrainerService
from ultima.daemon.trainers import attach
from ultima.daemon.trainers.budget import Budget
from ultima.daemon.trainers.users import Tokens
from ultima.daemon.trust.gate import CALLS_MAX, Gate
from ultima.daemon.trust.identity import shown_time
from ultima.daemon.trust.trust import SERVER_OPTIONS, look_for_ever, trust_of
from ultima.daemon.web.feed import Feed
from ultima.daemon.web.guard import Guard, key_in
from ultima.daemon.web.view import View
from ultima.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    peer_pb2,
    peer_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)
from ultima.v1.installed import missing
from ultima.v1.unix_target import unix_target

if TYPE_CHECKING:
    from ultima.daemon.web.site import Site

log = logging.getLogger("ultimad")

TRAINER = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
PEER = peer_pb2.DESCRIPTOR.services_by_name["PeerService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
TICK_SECONDS = 1.0
METRICS_SECONDS = 4.0
STREAMS_MAX = 1024  # a registration stays open while its job forms, and one daemon may speak for many ranks
HANDSHAKE = "grpc.server_handshake_timeout_ms"
HANDSHAKE_MS = 2000  # on this host


def engine_configs(config: DaemonConfig) -> list[EngineConfig]:
    """The engine's part of the options, for each of its threads. Ports follow the daemon's unless they are given."""
    options = config.engine
    return [
        EngineConfig(
            bind=config.bind,
            data_port=data_port,
            feedback_port=feedback_port,
            receive_buffer_bytes=options.receive_buffer_bytes,
            send_buffer_bytes=options.send_buffer_bytes,
            packet_bytes=options.packet_bytes,
            gso=options.gso,
            gro=options.gro,
            dscp=options.dscp_number,
        )
        for data_port, feedback_port in config.udp_ports()
    ]


def state_folder(config: DaemonConfig) -> Path | None:
    """Where the history goes: what the options say, or what systemd gives (StateDirectory=); None for memory only."""
    named = config.state_dir or os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return Path(named) if named else None


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Answers who asks. Nobody may wait for news, as each who does would hold a call for ever; gRPC's own clients take
    that for a server that is well."""

    async def Watch(self, request: Any, context: Any) -> None:
        """See health.proto."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only Check is answered here")


class Daemon:
    """All parts of one daemon, from start to stop."""

    def __init__(
        self,
        config: DaemonConfig,
        open_engine: Callable[[EngineConfig], Engine],
        version: str,
        ask_to_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask_to_stop` has whoever runs the daemon drain and stop it."""
        self.config, self.version, self.ask_to_stop = config, version, ask_to_stop
        self.incarnation = fresh_number()
        self.grpc_port = 0
        self._open_engine = open_engine
        self._well = True
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Everything listens when this returns. Raises StartupError, and has then undone what it did."""
        config = self.config = memory_max.fitted(self.config, memory_max.memory_max())
        self._folder = RuntimeDir(config.runtime_dir, config.allow_group)
        try:
            self.trust = trust_of(config)
            self._folder.clear(config.socket)
            self._folder.clear(config.attach_socket)
            if config.bind:
                check_port(config.bind, config.port)
            self.engine = HostEngine(engine_configs(config), self._open_engine)
            self.bound()
        except BaseException:
            self._folder.release()
            raise
        try:
            await self._serve()
        except BaseException:
            self.engine.close()
            self._folder.release(config.socket, config.attach_socket)
            raise
        self._log_start()
        sdnotify.notify("READY=1")

    def bound(self) -> None:
        """Has the engine send no more than the configuration says."""
        self.engine.send_at_most(self.config.engine.rate_bytes_per_s)

    async def _serve(self) -> None:
        config = self.config
        budget = Budget(config.limits)
        # A host looks for it again after so long at most, and has so long to tell it.
        told_by = asyncio.get_running_loop().time() + RETRY_SECONDS_MAX + RESTORE_SECONDS
        former = Former(config.runtime_dir / MEETING_FILE, told_by)
        self._coordinator = Coordinator(lambda: self.jobs.fellows.watch(), lambda: self._watchers.places(), former)
        self._watchers = Watchers(
            lambda: self.jobs.all(),
            on_come=lambda: self.jobs.fellows.watch(),
            on_gone=lambda place: self.jobs.fellows.unwatched(place),
        )
        changes, node = Changes(), self.trust.node if self.trust is not None else ""
        self.jobs = JobTable(config, self.engine, budget, self._coordinator, self._watchers, changes, node)
        self._loop = asyncio.get_running_loop()
        self.keeper = Keeper(state_folder(config), self.jobs.recorder)
        self.gauges = Gauges(config, self.engine, self.jobs, self.keeper, self.version, self.trust)
        self.initiators = Initiators(self.jobs.all, self.engine, lambda: self._peers, config.limits)
        changes.listen(self.initiators.review)
        tidy = Tidy()
        changes.listen(tidy.note)
        self.news = News(self.engine, self.jobs, self.initiators)
        self.jobs.settle = self.news.settle
        self.tokens = Tokens()
        self.attach = attach.AttachServer(
            config, self.engine, budget, self.tokens, self.version, self.jobs.trainer_gone
        )
        self.hearing = Hearing(self.jobs.all, self.engine, lambda: self._peers, self._watchers, self._note_ailment)
        self.jobs.fellows.on_unheard = self.hearing.told
        serves = config.bind and config.relay.serve
        self.desk = RelayDesk(self.jobs.all, (lambda: open_relay(config, self.engine)) if serves else None)
        self.gauges.relay = self.desk.stats
        self.routes = Routes(
            self.jobs.all,
            self.engine,
            lambda: self._peers,
            self.desk,
            config.relay.use,
            self.hearing.rerouted,
            self._note,
        )
        self.jobs.fellows.laid = self.routes.laid
        self.jobs.fellows.returning.note = self.jobs.fellows.council.note = self._note
        self._tuning = Tuning(self.jobs, self.jobs.fellows.council, self.jobs.fellows.stands)
        self.health = Health()

        self.lines = Lines(config.runtime_dir)
        self._arrivals: dict[str, str] = {}
        self.gate = Gate(self.trust, Quota("calls of other daemons", CALLS_MAX - CALLS_MAX // SHARE), self._arrivals)
        self._remote = grpc.aio.server(
            options=(
                *(*OPTIONS, IDLE, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", STREAMS_MAX)),
                (HANDSHAKE, round(1000 * exchange(RoundTrip()))),  # with nobody knows whom
                *(SERVER_OPTIONS if self.trust is not None else ()),
            ),
            interceptors=(
                Fresh(self.news.settle),
                self.gate,
            ),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        parts = self._coordinator, self.jobs, self._watchers, self.initiators
        more, ways = (self.hearing, self.engine, self.version), (self.desk, self.routes)
        lines = LineCalls(self.lines, lambda place: self._peers.dials(place), self.jobs.all)
        peer_pb2_grpc.add_PeerServiceServicer_to_server(
            PeerService(*parts, config.limits, self.trust, *more, *ways, lines), self._remote
        )
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._remote)
        if config.bind:
            try:
                self.grpc_port = self._listen(target(config.bind, config.port))
            except RuntimeError as error:
                raise StartFailed(f"bind = {config.bind!r}, port = {config.port}: {error}") from None

        self._local = grpc.aio.server(
            options=(
                *((HANDSHAKE, HANDSHAKE_MS), IDLE, ("grpc.max_receive_message_length", 1 << 20)),
                ("grpc.max_concurrent_streams", LOCAL_STREAMS_MAX),
            ),
            interceptors=(Fresh(self.news.settle),),
        )
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(
            TrainerService(self.attach, self.jobs, config, self.grpc_port), self._local
        )
        admin = AdminService(
            *(config, self.engine, self.jobs, self._tuning, self.tokens),
            *(self.version, self.incarnation, self.grpc_port, self.trust, self.keeper),
            lambda place, request, seconds: self._peers.read_ops(place, request, seconds),
            self.gauges.facts,
            Examiner(config, self.engine, self.jobs, lambda: self._peers, self.version, self.keeper.off_disk),
            lambda: self.site.address() if self.site is not None else "",
            lambda: self.ask_to_stop(),
            lambda job: self.cluster.ask(job),
        )
        self.cluster = Cluster(self.jobs, lambda: self._peers, admin.here)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, self._local)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._local)
        enable_server_reflection((TRAINER, ADMIN, HEALTH, REFLECTION), self._local)
        try:
            before = os.umask(0o117)
            try:
                self._local.add_insecure_port(unix_target(config.socket))
                await self._local.start()
            finally:
                os.umask(before)
            self._folder.hand_over(config.socket, config.allow_group)
            self.exposition = Exposition(config.metrics, self._metrics_text) if config.metrics else None
            self.site = await self._open_site() if config.web else None
            listener = attach.listen(config.attach_socket, config.allow_group)
        except StartFailed:
            await self._local.stop(None)
            await self._remote.stop(None)
            raise
        except (OSError, RuntimeError) as error:
            await self._local.stop(None)
            await self._remote.stop(None)
            raise StartFailed(f"runtime_dir = {str(config.runtime_dir)!r}: cannot listen there: {error}") from None

        watch = peer_pb2.WatchRequest(incarnation=self.incarnation, address=config.address, grpc_port=self.grpc_port)
        fellows = self.jobs.fellows
        told = Told(fellows.heard, fellows.lost, fellows.found)
        port = own_end(config.bind) if config.bind and not config.advertise else ""
        self._peers = Peers(watch, told, self.trust, self.lines, port, self._arrivals)
        self.jobs.start(self.grpc_port, self._peers)
        if config.bind:
            await self._remote.start()
        self.attach.start(listener)
        for service in (TRAINER, ADMIN, PEER):
            await self.health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self.news.listen()
        self._tasks.append(spawn(self._doorkeeper().run(), "doors"))
        self._tasks.append(spawn(self._tick(), "tick"))
        self._tasks.append(spawn(tidy.run(), "tidy"))
        if config.bind:
            self._tasks.append(spawn(self.hearing.run(), "hearing"))
            self._tasks.append(spawn(self.desk.run(), "relay"))
            self._tasks.append(spawn(self.routes.run(), "routes"))
        if self.trust is not None:
            self.trust.on_withdrawn = self._part_with
            fellows.part_with(self.trust.identity.withdrawn)
            self._tasks.append(spawn(look_for_ever(self.trust), "certificates"))
        self._note("daemon_started", f"ultimad {self.version} is ready, pid {os.getpid()}")
        self.keeper.start()
        self._tasks.append(spawn(self._look(), "gauges"))

    def _doorkeeper(self) -> Doorkeeper:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        doors = [local_door(str(self.config.socket), descriptors)]
        if self.config.bind:
            doors.append(peer_door(self.grpc_port, descriptors))
        return Doorkeeper(*doors)

    async def _open_site(self) -> Site:
        """The status page. What it needs is loaded here, so that a daemon without one does not have it in memory."""
        try:
            from ultima.daemon.web.site import Site
        except ModuleNotFoundError as error:
            why = missing(error, "the page")
            if why is None:
                raise
            raise StartFailed(f"web = {self.config.web!r}: {why}") from None
        config = self.config
        view = View(config, self.engine, self.jobs, self.version, self.cluster.ask)
        guard = Guard(key_in(state_folder(config)), tokens=not config.web.startswith("unix:"))
        site = Site(config.web, Feed(view), guard)
        await site.start()
        if config.web.startswith("unix:"):
            self._folder.hand_over(Path(config.web.removeprefix("unix:")), config.allow_group)
        return site

    def _listen(self, where: str) -> int:
        if self.trust is None:
            return int(self._remote.add_insecure_port(where))
        return int(self._remote.add_secure_port(where, self.trust.server_credentials()))

    async def drain(self) -> None:
        """Says that it goes, takes nobody in any more, begins no op, and gives those that are open some time to end."""
        self._note("daemon_stopping", "the daemon was told to stop")
        sdnotify.notify("STOPPING=1")
        await self.health.enter_graceful_shutdown()
        limits, loop = self.config.limits, asyncio.get_running_loop()
        began_ns, until = self.engine.now(), loop.time() + limits.drain_seconds
        self.jobs.go(limits.drain_window_seconds)
        await self.attach.stop_accepting()
        while loop.time() < until:
            if self.engine.stats()["oldest_open_ns"] > began_ns and self.jobs.settled():
                break
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Tells everyone and ends. Trainers see their life line break, other daemons their watch."""
        for task in self._tasks:
            task.cancel()
        self.routes.close()
        self.jobs.close()
        await self.initiators.close()
        self._watchers.close()
        self.cluster.close()
        await self._peers.close()
        await asyncio.gather(self._local.stop(0.2), self._remote.stop(0.2))
        await self.attach.stop()
        self.news.close()
        await self.keeper.stop()
        if self.site is not None:
            await self.site.close()
        if self.exposition is not None:
            await asyncio.to_thread(self.exposition.close)
        self.desk.close()
        self.engine.close()
        self._folder.release(self.config.socket, self.config.attach_socket)
        log.info("stopped")

    async def _tick(self) -> None:
        """Once a second: is there progress? Only then does the watchdog get its food."""
        fed = 0.0
        loop = asyncio.get_running_loop()
        period = sdnotify.watchdog_period()
        while True:
            verdict = judge_all(self.engine.now(), self.engine.stats_of_each())
            if verdict.well != self._well:
                self._well = verdict.well
                log.log(
                    logging.INFO if verdict.well else logging.ERROR,
                    "progress changed progress=%s reason=%s",
                    *("yes" if verdict.well else "no", verdict.reason),
                )
                if verdict.well:
                    self._note("progress_resumed", f"ops go on: {verdict.reason}")
                else:
                    self._note("progress_stalled", verdict.reason, level="error")
                serving = health_pb2.HealthCheckResponse
                for service in ("", TRAINER, ADMIN, PEER):
                    await self.health.set(service, serving.SERVING if verdict.well else serving.NOT_SERVING)
            if verdict.well and period is not None and loop.time() - fed >= min(period, TICK_SECONDS):
                sdnotify.notify("WATCHDOG=1")
                fed = loop.time()
            await asyncio.sleep(TICK_SECONDS if period is None else min(TICK_SECONDS, period))

    async def _look(self) -> None:
        while True:
            self.gauges.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _metrics_text(self) -> bytes:
        """For threads of the exposition: what is to be shown is copied in the loop, and its text is made here."""
        copied: concurrent.futures.Future[Facts] = concurrent.futures.Future()

        def copy() -> None:
            if copied.set_running_or_notify_cancel():
                try:
                    self.news.settle()
                    copied.set_result(self.gauges.facts())
                except Exception as error:
                    copied.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(copy)
            return rendered(copied.result(METRICS_SECONDS))
        except RuntimeError:  # the loop has ended
            raise TimeoutError from None
        finally:
            copied.cancel()

    def _note_ailment(self, job: Job) -> None:
        if job.ailment:
            known = job.membership.hosts if job.membership is not None else ()
            blamed = [known[index] for index in job.ailment.hosts if index < len(known)]
            host = str(blamed[0].place) if len(blamed) == 1 else ""
            self._note("udp_blocked", job.ailment.text, job.name, "error", host)
        else:
            self._note("udp_open", f"UDP gets through again in job {job.name}", job.name)

    def _part_with(self, nodes: frozenset[str]) -> None:
        """The authority has withdrawn these nodes, and no others."""
        told = ", ".join(sorted(nodes)) or "none"
        self._note("nodes_withdrawn", f"nodes that the authority has withdrawn: {told}", level="warning")
        self.jobs.fellows.part_with(nodes)

    def _note(self, kind: str, text: str, job: str = "", level: str = "info", host: str = "") -> None:
        self.jobs.recorder.events.note(kind, text, job, level, host=host)

    def _log_start(self) -> None:
        info = self.engine.info
        log.debug("limits %s", " ".join(f"{name}={value}" for name, value in self.config.limits_in_force().items()))
        if not self.config.bind:
            log.info("no peers: `bind` is not set, this daemon serves jobs of this host alone")
        elif self.config.insecure:
            log.warning("insecure: peers are not authenticated bind=%s", self.config.bind)
        elif self.trust is not None:
            end = shown_time(self.trust.identity.life.end)
            log.info(
                "secure: by %s cluster=%s node=%s not_after=%s",
                self.trust.mode,
                self.trust.cluster,
                self.trust.node,
                end,
            )
        log.info(
            "ready version=%s pid=%d socket=%s bind=%s port=%d lanes=%s simd=%s gso=%s gro=%s",
            *(self.version, os.getpid(), self.config.socket, self.config.bind or "none", self.grpc_port),
            *(",".join(f"{data}/{feedback}" for data, feedback in self.engine.ports), info.simd, info.gso, info.gro),
        )
