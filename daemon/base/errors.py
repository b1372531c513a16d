# SPDX-License-Identifier: Apache-2.0
"""Everything that can be refused, and the one table from error to gRPC status.

    UltimadError
     +- StartupError         the daemon cannot start as it is configured: one line on standard error, exit status 2
         +- StartFailed           the configuration may be right, but this host is not as it asks: exit status 1
     +- Refused              a call cannot be answered; says so to the one who asked
         +- InvalidArgument       a field outside its range
         +- Unauthenticated       no such ticket
         +- PermissionDenied      this user may not attach
         +- AlreadyExists         the rank is attached and alive
         +- NotFound              no such job or session
         +- FailedPrecondition    the hosts of a job do not agree
         +- ResourceExhausted     a limit, which the message names
         +- DeadlineExceeded      the message names what is missing
         +- Unavailable           the daemon is going down, or another one cannot be reached
         +- Internal              our own mistake; the log has more

A message names the field, its value and what is allowed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from ultima.v1.words import printable

log = logging.getLogger("ultimad.errors")


class UltimadError(Exception):
    """Base of all errors that the daemon raises on purpose."""


class StartupError(UltimadError):
    """The daemon cannot start as it is configured. The message is one line for people."""

    exit_status = 2


class StartFailed(StartupError):
    """The daemon cannot start now: an address or a port is not to be had, or a folder. That may mend itself."""

    exit_status = 1


class Refused(UltimadError):
    """A call that cannot be answered. The message goes to the caller as it is."""


class InvalidArgument(Refused):
    """A field outside its range."""


class Unauthenticated(Refused):
    """No such ticket, or one that is used up."""


class PermissionDenied(Refused):
    """The user at the other end may not do this."""


class AlreadyExists(Refused):
    """What the caller wants to be is taken, by someone who is alive."""


class NotFound(Refused):
    """No such job or session here."""


class FailedPrecondition(Refused):
    """The hosts or ranks of a job do not agree with each other."""


class ResourceExhausted(Refused):
    """A limit is reached."""


class DeadlineExceeded(Refused):
    """The caller's time is up."""


class Unavailable(Refused):
    """Not now: the daemon is going down, or another one cannot be reached."""


class Internal(Refused):
    """Our own mistake."""


STATUS: dict[type[Refused], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    NotFound: grpc.StatusCode.NOT_FOUND,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Internal: grpc.StatusCode.INTERNAL,
}
_ERROR = {status: error for error, status in STATUS.items()}

# Names of enum ut_error (`core/base/ut.h`), less UT_ERR_, to what each means for a caller of the control plane. What is
# not here is our own mistake: Internal.
ENGINE_ERRORS: dict[str, type[Refused]] = {
    "ARGUMENT": InvalidArgument,
    "UNKNOWN": NotFound,
    "FULL": ResourceExhausted,
    "EXISTS": AlreadyExists,
    "TOO_LARGE": InvalidArgument,
    "SEQUENCE": FailedPrecondition,  # not the op that comes next
    "CLOSED": Unavailable,
    "SYSTEM": ResourceExhausted,  # memory, descriptors or an address that the kernel does not give
    "ABSENT": FailedPrecondition,  # nobody here has given anything
}


def status_of(error: Refused) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return STATUS[type(error)]


def from_rpc(error: grpc.aio.AioRpcError, about: str) -> Refused:
    """What another daemon's refusal means here: the same kind of error, with `about` (whom we asked what) in front."""
    kind = _ERROR.get(error.code(), Internal)
    return kind(f"{about}: {said(error)}")


def said(error: grpc.aio.AioRpcError) -> str:
    """What another daemon says of a call that failed, in one line that a terminal can show, whatever it sends."""
    return printable(" ".join((error.details() or error.code().name).split()))


def from_engine(name: str, about: str, sentence: str) -> Refused:
    """The error for a ut_error by its name; `about` names the call, `sentence` is the engine's own explanation."""
    return ENGINE_ERRORS.get(name, Internal)(f"{about}: {sentence}")


async def abort(context: Any, error: Refused) -> NoReturn:
    """Ends an RPC with the status and message of `error`."""
    await context.abort(status_of(error), str(error))
    raise AssertionError("abort returned")


Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


def translated(method: Method) -> Method:
    """Turns the errors of a unary servicer method into statuses. What is unforeseen is logged, and told in brief."""

    @functools.wraps(method)
    async def wrapper(self: object, request: object, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except Refused as error:
            await abort(context, error)
        except (grpc.aio.AbortError, grpc.RpcError):
            raise
        except Exception:
            log.exception("rpc failed method=%s", method.__name__)
            await abort(context, Internal(f"{method.__name__}: internal error, see the daemon's log"))

    return wrapper  # type: ignore[return-value]
