# SPDX-License-Identifier: Apache-2.0
"""Waits for calls of gRPC, so that whoever waits may be cancelled at any time.

gRPC frees what belongs to a part of a call, the message that came with it included, only when the one who awaits that
part goes on. If that task is cancelled, up to ten KiB outside of Python's heap stay for ever
(https://github.com/grpc/grpc/issues/43360). So here a task of its own awaits each part, and nobody cancels it: the call
is cancelled instead, and the part then ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

_DETAILS = "nobody waits for it any more"


async def answered(call: Any) -> Any:
    """The answer of a call that has one. Raises what the call does."""
    return await unbroken(call, call)


async def messages(stream: Any) -> AsyncGenerator[Any, None]:
    """What comes on a stream of answers, to its end. Raises what the stream does. Whoever may leave before the end says
    so with `contextlib.aclosing`: the call is cancelled then."""
    try:
        while (message := await unbroken(stream.read(), stream)) is not grpc.aio.EOF:
            yield message
    finally:
        _cancel(stream)


async def unbroken(part: Any, call: Any) -> Any:
    """Awaits a part of a call. If the one who waits is cancelled, so is the call, and the part is left to its end. With
    None for a call that is served here: the part ends with it."""
    task = asyncio.ensure_future(part)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Looking at the exception keeps asyncio from complaining that it was never retrieved.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if call is not None:
            _cancel(call)
        raise


def _cancel(call: Any) -> None:
    """Cancels a call, and leaves those alone who await it."""
    inner = getattr(call, "_cython_call", None)  # whose public cancel() cancels them as well
    if inner is None:
        call.cancel()
    elif not inner.done():
        inner.cancel(_DETAILS)
