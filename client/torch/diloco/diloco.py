# SPDX-License-Identifier: Apache-2.0
"""`DiLoCo` and `LocalSGD`: a torch model that ranks train by themselves, and that meets now and then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ultima.api.job import Job
from ultima.base.errors import InvalidArgument, Unsupported
from ultima.base.receipt import Status
from ultima.base.sparse_form import rounded
from ultima.local.outer import Outer
from ultima.local.round_kernels import Floats
from ultima.local.rules import Nesterov
from ultima.torch.backend.group import group_of
from ultima.torch.diloco.inner_site import Site
from ultima.torch.diloco.tensors import Tensors

# torchft's names, and ours.
ALIASES = {"sync_every": "every", "fragment_sync_delay": "delay", "fragment_update_alpha": "alpha"}


class DiLoCo(Outer):
    """Local SGD with an outer optimizer, for a torch model (DiLoCo; with fragments and delay: Streaming DiLoCo).

        inner = torch.optim.AdamW(model.parameters(), lr=3e-4)
        with ultima.torch.DiLoCo(model, inner, every=100, fragments=4, delay=5, wire="int8") as outer:
            for batch in loader:
                inner.zero_grad(); loss_of(model, batch).backward(); inner.step()
                outer.step(tokens=batch.numel())

    model: all its trained parameters and its buffers of floats take part; those of rank 0 are everybody's to begin
    with. Not wrapped in DDP. inner: the optimizer of its parameters; its state stays the rank's own. With `hook` its
    step calls `outer.step()` by itself.
    outer: an `ultima.Nesterov`, or a `torch.optim.SGD` whose `lr` and `momentum` (with nesterov=True) are taken.
    job, group: the training's own job, or that of a process group; None for the default group.
    meet: None: the ranks are those of the job.
    inner_group: the process group of this site's ranks, of any backend, whose ranks hold the same parameters after each
    step, as under DDP (give the module within it). Its first rank takes part in rounds, for which `job` is its own,
    of a rank for each site; on the others `job` is None. All of them make the same calls; tokens are added up, and what
    a round changes is broadcast within the site. `state_dict`, `theta` and `summary` are the first rank's. Of a model
    whose parameters are cut over those ranks (FSDP2) each rank averages its shard with the same one of other sites:
    then `job` is a job of its own on each, whose ranks are the sites, in the same order; and so is the rest.
    sync_every, fragment_sync_delay, fragment_update_alpha, should_quantize: torchft's names of every, delay, alpha, and
    wire="int8". The rest as for `ultima.Outer`.

    Raises as `ultima.Outer`; InvalidArgument where a model has nothing to train or is spread over ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer | None = None,
        every: int = 100,
        *,
        outer: Nesterov | torch.optim.Optimizer | None = None,
        job: Job | None = None,
        group: dist.ProcessGroup | None = None,
        hook: bool = False,
        meet: str | None = None,
        inner_group: dist.ProcessGroup | None = None,
        should_quantize: bool | None = None,
        **options: Any,
    ) -> None:
        if meet is not None:
            raise Unsupported("meet", "the ranks are those of the job; open it with ultima.connect, and say job=")
        if should_quantize is not None:
            options.setdefault("wire", "int8" if should_quantize else "float32")
        for theirs, ours in ALIASES.items():
            if theirs in options:
                options[ours] = options.pop(theirs)
        every = options.pop("every", every)
        if hook and inner is None:
            raise InvalidArgument("hook", hook, "False without an inner optimizer")
        tensors = Tensors(model)
        self._site = None if inner_group is None or tensors.cut else Site(inner_group, tensors)
        self._sums = None
        if tensors.cut:
            for field, given in (("job", job), ("inner_group", inner_group)):
                if given is None:
                    raise InvalidArgument(field, None, f"the {field} of this rank's shard, as the model is cut")
            self._sums = Site(cast(dist.ProcessGroup, inner_group), tensors)
        if self._site is None:
            base = job if job is not None else group_of(group).job
            super().__init__(base or cast(Job, _Alone()), tensors, every, outer=_rule(outer), **options)
        else:
            self._begin_at(self._site, job, every, outer, options)
        self.model, self.inner = model, inner
        self._hook = inner.register_step_post_hook(lambda *_: self.step()) if hook and inner is not None else None

    def _begin_at(
        self, site: Site, job: Job | None, every: int, outer: Nesterov | torch.optim.Optimizer | None,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        """The ranks of a site begin: its first one with the others' sites, and the rest with what that one has."""
        if (job is None) is site.leads:
            given, allowed = ("None", "a job with a rank for each site") if job is None else (job.name, "None")
            raise InvalidArgument("job", given, f"{allowed} on rank {site.rank} of inner_group")
        if not site.leads:  # no round is its own
            options = {**options, "quorum": 1, "grace": None}
        base, rule = job or cast(Job, _Alone()), _rule(outer)
        site.together(lambda: super(DiLoCo, self).__init__(base, site, every, outer=rule, **options))
        if not site.leads:
            super().__init__(base, site, every, outer=rule, **options)

    @property
    def _follows(self) -> bool:
        return self._site is not None and not self._site.leads

    def step(self, tokens: float = 1) -> None:
        """See `Outer.step`. Of a site: on all its ranks; tokens are added up."""
        if self._site is None:
            super().step(tokens if self._sums is None else self._sums.total(tokens))
            return
        total = self._site.total(tokens)
        self._site.together(lambda: super(DiLoCo, self).step(total))

    def finish(self) -> None:
        """See `Outer.finish`. Of a site: on all its ranks."""
        if self._site is None:
            super().finish()
        else:
            self._site.together(super().finish)

    def meet(self) -> None:
        """See `Outer.meet`. Of a site: on all its ranks."""
        if self._site is None:
            super().meet()
        else:
            self._site.together(super().meet)

    @property
    def theta(self) -> Floats:
        """See `Outer.theta`. Raises Unsupported on ranks of a site that do not take part in rounds."""
        self._check_leads("theta")
        return super().theta

    def state_dict(self) -> dict[str, Any]:
        """See `Outer.state_dict`. Raises Unsupported on ranks of a site that do not take part in rounds."""
        self._check_leads("state_dict")
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Outer.load_state_dict`. Raises Unsupported on ranks of a site that do not take part in rounds."""
        self._check_leads("load_state_dict")
        super().load_state_dict(state)

    def _check_leads(self, name: str) -> None:
        if self._follows:
            raise Unsupported(name, "the first rank of inner_group has it: only that one takes part in rounds")

    def close(self) -> None:
        """Leaves the rounds. Idempotent."""
        if self._hook is not None:
            self._hook.remove()
        super().close()


class LocalSGD(DiLoCo):
    """Local SGD: now and then the model becomes the average of all ranks' models. `DiLoCo` with an outer learning rate
    of 1 and no momentum; the other arguments as there."""

    def __init__(
        self, model: nn.Module, inner: torch.optim.Optimizer | None = None, every: int = 100, **options: Any
    ) -> None:
        if options.get("outer") is not None:
            raise InvalidArgument("outer", options["outer"], "none: use DiLoCo for an outer optimizer")
        super().__init__(model, inner, every, **{**options, "outer": Nesterov(lr=1.0, momentum=0.0)})


class SparseLoCo(DiLoCo):
    """Rounds in which each rank gives the largest 64 of each 4,096 elements, and keeps 0.95 of the others for the next
    round (Sarfi et al. 2025). `DiLoCo` with sparse=1/64, an outer learning rate of 1 and no momentum, which what is
    kept stands for; the other arguments as there. Its paper is about thousands of rounds: it is behind DiLoCo in few.
    """

    def __init__(
        self, model: nn.Module, inner: torch.optim.Optimizer | None = None, every: int = 30, **options: Any
    ) -> None:
        preset = {"sparse": 1 / 64, "outer": Nesterov(lr=1.0, momentum=0.0)}
        super().__init__(model, inner, every, **{**preset, **options})


def _rule(outer: Nesterov | torch.optim.Optimizer | None) -> Nesterov:
    """The rule that is meant. Raises InvalidArgument for what the outer step does not do."""
    if outer is None or isinstance(outer, Nesterov):
        return outer or Nesterov()
    settings = outer.defaults
    momentum = settings.get("momentum", 0)
    others = [name for name in ("weight_decay", "dampening", "maximize") if settings.get(name)]
    if not isinstance(outer, torch.optim.SGD) or others or (momentum and not settings.get("nesterov")):
        said = f"{type(outer).__name__} with {', '.join(others) or f'momentum {momentum}'}"
        raise InvalidArgument("outer", said, "a Nesterov, or torch.optim.SGD with lr, momentum and nesterov=True alone")
    return Nesterov(float(settings["lr"]), float(momentum))


class _Alone:
    """The job of a group of one rank, which has none: what it gives is the sum."""

    rank, world_size, bucket_bytes_max = 0, 1, 1 << 62

    def beside(self, *_: object, **__: object) -> _Alone:
        return self

    def empty(self, count: int) -> Floats:
        return np.empty(count, np.float32)

    def holds(self, address: int, nbytes: int) -> bool:
        return True

    def allreduce_async(self, array: Floats, *_: object, **__: object) -> Any:
        receipt = SimpleNamespace(status=Status.COMPLETE, op_seq=0, bytes_used=0, wire_received=0)
        return SimpleNamespace(wait=lambda: receipt, done=lambda: True, array=array)

    def allreduce_sparse_async(self, indices: Floats, values: Floats, out: Floats, **said: Any) -> Any:
        out[:] = 0
        out[indices] = rounded(values, said["form"])
        return self.allreduce_async(out)

    def close(self) -> None: ...
