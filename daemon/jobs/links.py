# SPDX-License-Identifier: Apache-2.0
"""The paths between this host and the others of one job: how they come up, break, and come up again.

A path is two connection ids for each pair of ports, each chosen by the side that receives. One Connect call settles
all: it offers the caller's ids and brings back the other's. The engine forgets all it knows of a path when it breaks,
so a path that broke is never resumed: new ids are exchanged.

If both sides could offer, offers and answers would cross, and the two could end with ids of different exchanges, deaf
to each other. So of two hosts only the one with the lower index offers; the other one, when it misses the path, *asks*
for an offer. Offers are numbered, and the side that answers takes none that is older than the last one it has taken: a
call that was overtaken does no harm.

A host whose packets broke the protocol gets a new path, with new secrets. Where packets are not sealed anybody can have
sent them, so that is at once, and later each time. Where they are, it was that host itself: no path to it is made for a
minute.

Anyone who can reach the daemon can call in another host's name. So the side that answers *doubts* an offer that takes
the place of a path that stood, and an offer that is void: it asks the host, at the address where it knew the host,
whether that offer was the host's own. If it was not, the host makes a newer one. A new life of a host is not believed
while the old one still answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable

from ultima.daemon.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    Refused,
    Unavailable,
)
from ultima.daemon.base.ranges import OP_SEQ_MAX, WINDOW, whole
from ultima.daemon.base.waiting import spawn
from ultima.daemon.engine.host_engine import HostEngine
from ultima.daemon.engine.seal import Seal, Sealing
from ultima.daemon.engine.seal import taken as taken_seal
from ultima.daemon.hosts.host import Host, Place, State
from ultima.daemon.hosts.standing import Standing
from ultima.daemon.jobs.claims import Claims
from ultima.daemon.jobs.link import Link
from ultima.daemon.jobs.renewal import Renewal
from ultima.daemon.trust import job_secret
from ultima.v1 import peer_pb2, types_pb2

log = logging.getLogger("ultimad.links")

CALL_SECONDS = 5.0  # one Connect call; the other side waits that long for its own membership
DOUBT_SECONDS = 2.0  # one call that only asks whether a host stands by what came in its name
DOUBTS_MAX = 5  # questions about one offer, or about those that replace it meanwhile
ASK_SECONDS = 1.0  # for the offer that was asked for, before it is asked for again
QUARANTINE_SECONDS = 60.0  # for which a host has no path whose sealed packets broke the protocol
SEAL_SECONDS = 60.0  # for which an answer that was lost can be given again
DEAD_AFTER = 3  # calls that nobody takes, before a host that should be under way is taken for dead, ...
DEAD_SECONDS = 5.0  # ... or any, if they took so long: a machine that is gone refuses nothing

ConnectCall = Callable[[Place, peer_pb2.ConnectRequest, float], Awaitable[peer_pb2.ConnectResponse]]


class Links(Claims):
    """All paths of one job."""

    def __init__(
        self,
        engine: HostEngine,
        call: ConnectCall,
        job: str,
        number: int,
        generation: int,
        own: Host,
        others: dict[int, Host],
        next_op_seq: int,
        on_change: Callable[[], None],
        secret: bytes = b"",
        sealing: Sealing | None = None,
        elastic: bool = False,
        is_in: Callable[[Host], bool] = lambda host: False,
    ) -> None:
        """`number` is the engine's number of the job; `others` are its other hosts by index; `secret` is the job's.

        `sealing`: packets are sealed, on all paths. `elastic`: the place of a host that is gone may be another one's.
        `is_in`: whether that life of a host is in the ops of the job, as its hosts have agreed.
        """
        self._elastic, self._is_in = elastic, is_in
        self._engine, self._call, self._job, self._number = engine, call, job, number
        self._generation, self.own = generation, own
        self._on_change, self._secret, self._sealing = on_change, secret, sealing
        self._links = {index: Link(host) for index, host in others.items()}
        self._standing = Standing(next_op_seq)

    def __getitem__(self, index: int) -> Link:
        return self._links[index]

    @property
    def next_op_seq(self) -> int:
        """The op that comes next, as far as this host and the other ones say."""
        return self._standing.next_op_seq(self._engine.next_op_seq(self._number))

    def takes_part_from(self, op_seq: int) -> int:
        """The op with which a rank that comes back, and would call `op_seq` next, takes part again: what is older has
        ended on all hosts that are up."""
        here = max(self._engine.next_op_seq(self._number), self.next_op_seq)
        open_there = [link.oldest_op_seq for link in self._links.values() if link.up()]
        return max(op_seq, min([here, *open_there]))

    def __contains__(self, index: int) -> bool:
        return index in self._links

    def values(self) -> list[Link]:
        """All links, in order of their hosts."""
        return [self._links[index] for index in sorted(self._links)]

    def begin(self, rejoin: bool, absent: set[int]) -> None:
        """Starts to connect. A host that comes back calls everyone, but does not wait for the `absent` ones."""
        for index, link in self._links.items():
            if index in absent:
                link.state = State.ABSENT
                if self._elastic:
                    continue  # who takes the seat calls
            if rejoin or self._offers(link):
                self.call(link, give_up=rejoin)

    def settled(self) -> bool:
        """Every path is up, or known to lead nowhere."""
        return all(link.state is not State.CONNECTING for link in self._links.values())

    def done(self) -> bool:
        """No other host needs anything of this one any more."""
        return all(link.leaving or not link.up() for link in self._links.values())

    def unsettled(self) -> str:
        """For people: the hosts that are waited for, and why."""
        waiting = [link for link in self.values() if link.state is State.CONNECTING]
        return "; ".join(f"{link.host.name}: {link.why}" for link in waiting)

    def call(self, link: Link, give_up: bool, after: float = 0.0) -> None:
        """Calls a host until the path is up, unless someone does. `give_up`: nobody there means that it is dead."""
        if not link.calls():
            link.caller = spawn(self._keep_calling(link, give_up, after), f"connect-{self._job}")

    async def called(
        self,
        caller: Host,
        cids: tuple[int, ...],
        offer: int,
        doubt: bool,
        seal: types_pb2.SealOffer | None = None,
    ) -> tuple[int, ...]:
        """The other side offers `cids`, or asks for an offer: returns our ids for the former. Raises Refused.

        `seal` goes with the ids; with ours goes `seal_offered`.
        """
        whole("offer", offer, 0, OP_SEQ_MAX)
        link = self._link_of(caller)
        self._check_quarantine(link)
        known = link.host.incarnation
        if self._has_left(link, caller, doubt and not cids):
            return ()
        if link.up() and self._elastic and caller.incarnation != known and caller.place != link.host.place:
            await self._check_seat(link, caller)
        elif link.up() and caller.incarnation != known and await self._stands_by(link, link.offer):
            raise FailedPrecondition(
                f"job {self._job!r}: caller.incarnation = {caller.incarnation}: {link.host.name} is alive as {known}"
            )
        if cids:
            return self.answer(caller, cids, offer, seal)
        if self._offers(link) or not doubt:
            self.asked(caller, offer, doubt)
        return ()

    def renewed(self, caller: Host, cids: tuple[int, ...], seal: types_pb2.SealOffer | None) -> None:
        """The other side has a fresh secret for our packets under `cids`. Raises Refused."""
        link = self._link_of(caller)
        fresh = taken_seal(self._sealing, seal, caller.name, self._job)
        stands = link.up() and link.host.incarnation == caller.incarnation
        if fresh is None or not stands or not cids or not set(cids) <= set(link.tx_cids):
            raise FailedPrecondition(
                f"job {self._job!r}: connection_ids = {list(cids)[:4]}: of no path to {caller.name} that stands and is "
                "sealed"
            )
        digest = hashlib.sha256(fresh.secret).digest()
        if digest == link.renewed_by:
            return  # its answer was lost
        taken = self._engine.peer_renew(self._number, caller.index, True, link.tx_cids, fresh, cids)
        if set(taken) != set(cids):
            raise FailedPrecondition(f"job {self._job!r}: seal: the fresh secret before it is not in use yet")
        link.renewed_by, link.renewed = digest, link.renewed + 1

    def seal_offered(self, index: int) -> types_pb2.SealOffer | None:
        """How packets from that host to this one are to be sealed, since its offer was taken."""
        seal = self._links[index].rx_seal
        return None if seal is None else seal.to_proto()

    def answer(
        self, caller: Host, cids: tuple[int, ...], offer: int, seal: types_pb2.SealOffer | None = None
    ) -> tuple[int, ...]:
        """The other side offers: takes its ids and returns ours. Raises FailedPrecondition."""
        link = self._link_of(caller)
        if self._offers(link):
            raise FailedPrecondition(f"job {self._job!r}: caller.index = {caller.index}: it is not the one to offer")
        self._check_path(caller, cids)
        taken = link.offer if link.host.incarnation == caller.incarnation else 0
        if offer == taken and link.up() and link.tx_cids == cids:
            if self._sealing is not None and link.rx_seal is None:
                raise Unavailable(f"job {self._job!r}: offer = {offer}: taken long ago, make a newer one")
            return link.rx_cids
        if offer <= taken:
            self._doubt(link)
            raise FailedPrecondition(f"job {self._job!r}: offer = {offer}: void, {taken} was taken already")
        if offer > taken + WINDOW:
            raise FailedPrecondition(f"job {self._job!r}: offer = {offer}: allowed: {taken + 1} to {taken + WINDOW}")
        tx_seal = taken_seal(self._sealing, seal, caller.name, self._job)
        replaced = link.up() and link.host.incarnation == caller.incarnation
        link.offer = offer
        rx_seal = self._draw_seal()
        rx_cids = self._engine.peer_listen(self._number, caller.index, rx_seal)
        self._connect(link, caller, rx_cids, cids, tx_seal)
        link.rx_seal = rx_seal
        asyncio.get_running_loop().call_later(SEAL_SECONDS, self._forget_seal, link, rx_seal)
        if replaced:
            self._doubt(link)
        return link.rx_cids

    def asked(self, caller: Host, taken: int, doubt: bool = False) -> None:
        """The other side misses the path; offer `taken` is the last one that reached it. Raises FailedPrecondition.

        `doubt`: the path is not missed if that offer was really made here.
        """
        link = self._link_of(caller)
        if not self._offers(link):
            raise FailedPrecondition(f"job {self._job!r}: caller.index = {caller.index}: it is the one to offer")
        if link.host.incarnation == caller.incarnation:
            if link.offer >= taken + (not doubt) and (link.up() or link.calls()):
                return  # it asked before our offer came
            if taken > link.offer + WINDOW:
                raise FailedPrecondition(f"job {self._job!r}: offer = {taken}: allowed: up to {link.offer + WINDOW}")
            self._forget(link, "it took an offer that was not ours" if taken > link.offer else "it lost the path")
            link.offer = max(link.offer, taken)
        else:
            self._forget(link, "its daemon was restarted")
            link.host = caller
        link.stop_calling()  # what is on its way is an answer that is void, or an offer to a life that is over
        self.call(link, give_up=False)

    def check_node(self, caller: Host) -> None:
        """Raises PermissionDenied if another node calls than the one that has the host's place."""
        link = self._links.get(caller.index)
        # Where hosts come and go another life may have been given the same place: whose it is, `called` finds out.
        free = self._elastic and link is not None and (not link.up() or link.host.incarnation != caller.incarnation)
        if link is not None and not free and link.host.node != caller.node:
            raise PermissionDenied(
                f"job {self._job!r}: caller.index = {caller.index}: is the place of node {link.host.node!r}, the call "
                f"comes from node {caller.node!r}"
            )

    def absent(self, index: int, why: str) -> None:
        """A host is gone: ops do not wait for it."""
        link = self._links[index]
        link.stop_calling()
        if link.state is State.CONNECTING:
            link.state, link.why = State.ABSENT, why
            self._on_change()
        self._forget(link, why)

    def violated(self, index: int) -> float | None:
        """The engine saw that host's packets break the protocol: a new path is made.

        Returns after how many seconds; None if there is no path to that host. Sealed packets are its own, and it is in
        quarantine; others may be forged, and it is at once, and later each time that it happens again soon.
        """
        link = self._links.get(index)
        if link is None or not link.up():
            return None
        link.violations += 1
        now = asyncio.get_running_loop().time()
        wait = link.mending.next(now) if self._sealing is None else QUARANTINE_SECONDS
        if self._sealing is not None:
            link.quarantined_until = now + wait
        self._forget(link, f"its packets broke the protocol, for the {link.violations}. time; next path in {wait:g} s")
        link.stop_calling()
        self.call(link, give_up=False, after=wait)
        return wait

    def close(self) -> None:
        """The job is over here."""
        for link in self._links.values():
            link.stop_calling()
            link.stop_doubting()
            link.stop_renewing()
            link.stop_waiting()

    def _check_quarantine(self, link: Link) -> None:
        """Raises Unavailable while a host has to wait because of what it sent."""
        left = link.quarantine(asyncio.get_running_loop().time())
        if left:
            raise Unavailable(
                f"job {self._job!r}: {link.host.name}: its packets broke the protocol, no path for {left:.0f} s more"
            )

    def _offers(self, link: Link) -> bool:
        """Whether it is ours to offer."""
        return self.own.index < link.host.index

    def _link_of(self, caller: Host) -> Link:
        link = self._links.get(caller.index)
        if link is None or link.host.ranks != caller.ranks:
            raise FailedPrecondition(
                f"job {self._job!r}: caller.index = {caller.index} with ranks {list(caller.ranks)}: "
                f"not a peer of host {self.own.index}"
            )
        return link

    def _check_path(self, host: Host, cids: tuple[int, ...]) -> None:
        """Raises FailedPrecondition unless the host's ids and ports are as many as the job's here."""
        self._engine.check_path(self._number, cids, host.ports, f"job {self._job!r}: {host.name}")

    def _forget(self, link: Link, why: str) -> None:
        """A path that was up is not any more."""
        if not link.up():
            return
        log.warning(
            "host absent job=%s host=%d address=%s reason=%s", self._job, link.host.index, link.host.address, why
        )
        link.state, link.rx_cids, link.tx_cids, link.why = State.ABSENT, (), (), why
        link.came_up.clear()
        link.stop_renewing()
        self._engine.peer_absent(self._number, link.host.index)
        self._on_change()

    def _connect(
        self, link: Link, host: Host, rx_cids: tuple[int, ...], tx_cids: tuple[int, ...], tx_seal: Seal | None
    ) -> None:
        self._engine.peer_connect(self._number, host.index, host.address, host.ports, tx_cids, tx_seal)
        link.host, link.rx_cids, link.tx_cids, link.state, link.why = host, rx_cids, tx_cids, State.UP, ""
        link.leaving = link.follows = False
        link.stop_waiting()
        link.came_up.set()
        self._begin_renewing(link)
        log.info("host up job=%s host=%d address=%s", self._job, host.index, host.address)
        self._on_change()

    def _begin_renewing(self, link: Link) -> None:
        link.stop_renewing()
        if self._sealing is None:
            return

        def tell(cids: tuple[int, ...], seal: Seal) -> Awaitable[object]:
            return self._request(link, cids, link.host.incarnation, link.offer, seal=seal, renew=True)

        ours = self._engine, self._sealing, self._job, self._number
        link.renewal = Renewal(*ours, link.host.index, link.rx_cids, tell)
        link.renewer = spawn(link.renewal.run(), f"renewal-{self._job}")

    def _doubt(self, link: Link) -> None:
        """Asks the host whether the offer that was taken last is its own, unless that is being asked."""

        async def ask() -> None:
            for _ in range(DOUBTS_MAX):
                offer = link.offer
                known = await self._stands_by(link, offer)
                if not link.up() or (known and link.offer == offer):
                    return  # else another offer was taken while we asked, or nobody has answered
                await asyncio.sleep(0 if known else DOUBT_SECONDS)

        if link.doubter is None or link.doubter.done():
            link.doubter = spawn(ask(), f"doubt-{self._job}")

    async def _claim(self, link: Link, rival: int) -> peer_pb2.ConnectResponse:
        return await self._request(link, (), link.host.incarnation, link.offer, doubt=True, rival=rival)

    async def stands_by(self, link: Link) -> None:
        """Returns when the life of a host that there is a path to says that it goes on. Raises Refused."""
        await self._request(link, (), link.host.incarnation, link.offer, doubt=True)

    async def is_over(self, host: Host) -> bool:
        """Whether the daemon in the place of a host says that this life of it is over. False where nobody does, and of
        a host that only goes out: by its own address another one may be reached from here."""
        if host.outward:
            return False
        try:
            await self._request(Link(host), (), host.incarnation, 0, doubt=True)
        except Refused as error:
            return isinstance(error, NotFound)
        return False

    async def _stands_by(self, link: Link, offer: int) -> bool:
        """Whether the host still lives the life that we know of; it makes a newer offer if that one was not its own."""
        try:
            await self._request(link, (), link.host.incarnation, offer, doubt=True)
        except Refused as error:
            log.debug("doubted job=%s host=%d reason=%s", self._job, link.host.index, error)
            return False
        return True

    async def _keep_calling(self, link: Link, give_up: bool, after: float) -> None:
        delay, unanswered = 0.05, 0
        await asyncio.sleep(after)
        clock = asyncio.get_running_loop().time
        began = clock()
        while not link.up():
            try:
                await (self._offer(link) if self._offers(link) else self._ask(link))
                if link.up():
                    return
            except AlreadyExists as error:
                link.why, self.seat_taken = str(error), self._elastic
                self._on_change()
                return
            except FailedPrecondition as error:
                # It lives another life than we know of: it knows better, and calls us.
                link.why = str(error)
                log.debug("connect refused job=%s host=%d reason=%s", self._job, link.host.index, error)
                if not (self._elastic and give_up and self._not_there(link, error)):
                    return
                unanswered, began = 0, clock()
            except Refused as error:
                link.why = str(error)
                # A daemon that lives and has no part in the job may get one; where hosts come and go it need not.
                idle = self._elastic and isinstance(error, DeadlineExceeded)
                unanswered += isinstance(error, Unavailable) or idle or link.state is State.ABSENT
                if give_up and unanswered and (unanswered >= DEAD_AFTER or clock() - began >= DEAD_SECONDS):
                    if not self._not_there(link, error):
                        return
                    unanswered, began = 0, clock()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, 1.0)

    async def _offer(self, link: Link) -> None:
        """One exchange."""
        host = link.host
        link.offer += 1
        rx_seal = self._draw_seal()
        rx_cids = self._engine.peer_listen(self._number, host.index, rx_seal)
        response = await self._request(link, rx_cids, host.incarnation, link.offer, seal=rx_seal)
        if response.incarnation == host.incarnation:
            tx_cids = tuple(response.connection_ids)
            self._check_path(host, tx_cids)
            seal = response.seal if response.HasField("seal") else None
            self._connect(link, host, rx_cids, tx_cids, taken_seal(self._sealing, seal, host.name, self._job))

    def _draw_seal(self) -> Seal | None:
        return None if self._sealing is None else self._sealing.draw()

    @staticmethod
    def _forget_seal(link: Link, seal: Seal | None) -> None:
        """No answer that was lost is asked for any more; the engine has made keys of the secret and wiped it."""
        if link.rx_seal is seal:
            link.rx_seal = None

    async def _ask(self, link: Link) -> None:
        """Asks for an offer, and gives it the time to come."""
        link.why = "has been asked to call"
        await self._request(link, cids=(), to_incarnation=0, offer=link.offer)
        try:
            await asyncio.wait_for(link.came_up.wait(), ASK_SECONDS)
        except TimeoutError:
            link.why = "was asked to call, and does not"

    async def _request(
        self,
        link: Link,
        cids: tuple[int, ...],
        to_incarnation: int,
        offer: int,
        doubt: bool = False,
        seal: Seal | None = None,
        renew: bool = False,
        rival: int = 0,
    ) -> peer_pb2.ConnectResponse:
        request = peer_pb2.ConnectRequest(
            job=self._job,
            generation=self._generation,
            caller=self.own.to_proto(),
            to_index=link.host.index,
            connection_ids=cids,
            to_incarnation=to_incarnation,
            offer=offer,
            doubt=doubt,
            seal=None if seal is None else seal.to_proto(),
            renew=renew,
            rival=rival,
        )
        proved = (self._job, self._generation, self.own.node, link.host.node)
        if self._secret:
            request.proof.CopyFrom(job_secret.prove(self._secret, *proved))
        response = await self._call(link.host.place, request, DOUBT_SECONDS if doubt else CALL_SECONDS)
        if self._secret and not job_secret.answers(self._secret, response.proof, request.proof, *proved):
            raise PermissionDenied(f"job {self._job!r}: {link.host.name} does not know its secret")
        if not doubt:
            self.meet(response.hosts)
        self._standing.hear(link.host.index, whole("next_op_seq", response.next_op_seq, 0, OP_SEQ_MAX))
        link.oldest_op_seq = whole("oldest_op_seq", response.oldest_op_seq, 0, OP_SEQ_MAX)
        return response
