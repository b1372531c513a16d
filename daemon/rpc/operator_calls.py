# SPDX-License-Identifier: Apache-2.0
"""The part of AdminService for whoever runs the daemon itself: metrics, options, the log's level, and a live status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ultima.daemon.base.config import KEYS, DaemonConfig
from ultima.daemon.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    Refused,
    abort,
    translated,
)
from ultima.daemon.base.quota import Quota
from ultima.daemon.base.waiting import spawn
from ultima.daemon.observe.keeper import Keeper
from ultima.daemon.observe.metrics import Facts
from ultima.daemon.observe.recorder import Recorder
from ultima.daemon.rpc.history_calls import HistoryCalls, ReadOps, event_message
from ultima.daemon.trainers.users import Tokens
from ultima.v1 import admin_pb2

LEVELS = ("debug", "info", "warning", "error")
LEVEL_MS_MAX = 86_400_000
WATCHERS_MAX = 16
ASKERS_MAX = 16
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 200, 60_000

log = logging.getLogger("ultimad")
AskCluster = Callable[[str], Awaitable[admin_pb2.GetClusterResponse]]


class OperatorCalls(HistoryCalls):
    """See the module."""

    def __init__(
        self,
        config: DaemonConfig,
        keeper: Keeper,
        recorder: Recorder,
        tokens: Tokens,
        read_ops: ReadOps,
        facts: Callable[[], Facts],
        page: Callable[[], str],
        ask_to_stop: Callable[[], None],
        cluster: AskCluster,
    ) -> None:
        """`facts` is what the metrics show now; `page` a fresh address of the status page, empty if there is none;
        `ask_to_stop` has the daemon drain and end; `cluster` asks all hosts of a job."""
        super().__init__(keeper, recorder, tokens, read_ops)
        self._config, self._facts, self._page, self._ask_to_stop = config, facts, page, ask_to_stop
        self._cluster, self._askers = cluster, Quota("views of the cluster", ASKERS_MAX, ASKERS_MAX // 4)
        self._watches = Quota("watches", WATCHERS_MAX, WATCHERS_MAX // 4)
        self._level_back: asyncio.Task[None] | None = None

    def status(self, job: str) -> admin_pb2.GetStatusResponse:
        """The status of one job, or of all for "". Raises NotFound."""
        raise NotImplementedError

    @translated
    async def GetMetrics(self, request: admin_pb2.GetMetricsRequest, context: Any) -> admin_pb2.GetMetricsResponse:
        """See admin.proto."""
        facts = self._facts()
        text = await asyncio.to_thread(rendered, facts)
        return admin_pb2.GetMetricsResponse(text=text.decode())

    @translated
    async def OpenPage(self, request: admin_pb2.OpenPageRequest, context: Any) -> admin_pb2.OpenPageResponse:
        """See admin.proto."""
        address = self._page()
        if not address:
            raise FailedPrecondition("web = '': this daemon serves no page: set it to 127.0.0.1:29518 or unix:PATH")
        return admin_pb2.OpenPageResponse(address=address)

    @translated
    async def GetCluster(self, request: admin_pb2.GetClusterRequest, context: Any) -> admin_pb2.GetClusterResponse:
        """See admin.proto."""
        with self._askers.taken(f"uid {self._tokens.caller(context)}"):
            return await self._cluster(request.job)

    @translated
    async def GetConfig(self, request: admin_pb2.GetConfigRequest, context: Any) -> admin_pb2.GetConfigResponse:
        """See admin.proto."""
        values = self._config.model_dump(mode="json")
        origins = self._config.origins()
        rows = []
        for key in KEYS:
            value: Any = values
            for part in key:
                value = value[part]
            name = ".".join(key)
            rows.append(admin_pb2.ConfigValue(key=name, value=json.dumps(value), origin=origins[name]))
        return admin_pb2.GetConfigResponse(values=rows)

    @translated
    async def SetLogLevel(self, request: admin_pb2.SetLogLevelRequest, context: Any) -> admin_pb2.SetLogLevelResponse:
        """See admin.proto."""
        uid = self._tokens.caller(context)
        if uid not in (0, os.geteuid()):
            raise PermissionDenied(f"the log is the daemon's, and this is uid {uid}: use root, or uid {os.geteuid()}")
        if request.level not in LEVELS:
            raise InvalidArgument(f"level = {request.level!r}: allowed: {', '.join(LEVELS)}")
        if not 0 <= request.for_ms <= LEVEL_MS_MAX:
            raise InvalidArgument(f"for_ms = {request.for_ms}: allowed: 0 to {LEVEL_MS_MAX}")
        if self._level_back is not None:
            self._level_back.cancel()
            self._level_back = None
        before = logging.getLevelName(logging.getLogger().level).lower()
        self._set_level(request.level)
        if request.for_ms:
            self._level_back = spawn(self._back(request.for_ms / 1e3), "log level")
        return admin_pb2.SetLogLevelResponse(before=before)

    @translated
    async def Drain(self, request: admin_pb2.DrainRequest, context: Any) -> admin_pb2.DrainResponse:
        """See admin.proto."""
        uid = self._tokens.caller(context)
        if uid not in (0, os.geteuid()):
            raise PermissionDenied(f"uid {uid} may not: allowed: root and the daemon's own user")
        log.info("drain uid=%d", uid)
        self._ask_to_stop()
        limits = self._config.limits
        return admin_pb2.DrainResponse(
            pid=os.getpid(),
            drain_ms=round(limits.drain_seconds * 1e3),
            window_ms=round(limits.drain_window_seconds * 1e3),
        )

    async def Watch(
        self, request: admin_pb2.AdminServiceWatchRequest, context: Any
    ) -> AsyncIterator[admin_pb2.AdminServiceWatchResponse]:
        """See admin.proto."""
        try:
            if not INTERVAL_MS_MIN <= request.interval_ms <= INTERVAL_MS_MAX:
                allowed = f"{INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}"
                raise InvalidArgument(f"interval_ms = {request.interval_ms}: allowed: {allowed}")
            with self._watches.taken(f"uid {self._tokens.caller(context)}"):
                last = max(self._recorder.events.last - 20, 0)
                while True:
                    news = self._recorder.events.after(last)
                    last = self._recorder.events.last
                    yield admin_pb2.AdminServiceWatchResponse(
                        status=self.status(request.job), events=[event_message(event) for event in news]
                    )
                    await asyncio.sleep(request.interval_ms / 1e3)
        except Refused as error:
            await abort(context, error)

    def _set_level(self, level: str) -> None:
        logging.getLogger().setLevel(level.upper())
        log.log(logging.getLevelName(level.upper()), "log level is now %s", level)
        self._recorder.events.note("log_level", f"the least level that is logged is now {level}")

    async def _back(self, seconds: float) -> None:
        """To what the options say, when the time is over."""
        await asyncio.sleep(seconds)
        self._level_back = None
        self._set_level(self._config.log_level)


def rendered(facts: Facts) -> bytes:
    """The text of the metrics. Their library is loaded when it is needed first."""
    from ultima.daemon.observe.metrics_text import render

    return render(facts)
