"""A schedule: for every rank the list of what it does, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smdp import _core
from smdp._arguments import flag
from smdp._shown import shown

from . import _costs, _picture


class Schedule:
    """Rows of actions, one per rank; generate(), from_csv() and from_json() make one.

    An action is text as in torch.distributed.pipelining: virtual stage, kind, microbatch ("2F0"). Kinds are
    F, I (input gradient), W (weight gradient), B (both), SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD,
    REDUCE_GRAD, "(0F5;3B1)OVERLAP_F_B", and smdp's own OFFLOAD, RELOAD, REDUCE_TIED and REDUCE_NORM, which
    has no stage. A send or receive may say what it carries: "0SEND_F1:float32[8x512x768]".
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.PipelineSchedule) -> None:
        if not isinstance(core, _core.PipelineSchedule):
            raise TypeError(
                f"[smdp] {shown(core)} makes no schedule; allowed: generate(), from_csv() and from_json() do"
            )
        self._core = core

    @property
    def name(self) -> str:
        """What generate() called it."""
        return self._core.name

    @property
    def ranks(self) -> int:
        """Number of rows."""
        return self._core.ranks

    @property
    def stages(self) -> int:
        """Number of virtual stages of all ranks together."""
        return self._core.stages

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return self._core.microbatches

    @property
    def forward_only(self) -> bool:
        """Whether there is no backward."""
        return self._core.forward_only

    @property
    def rank_of(self) -> list[int]:
        """Rank of each virtual stage."""
        return self._core.rank_of

    @property
    def skip_edges(self) -> list[tuple[int, int]]:
        """Values that pass stages by, as (source, target) stages."""
        return self._core.skip_edges

    @property
    def tied(self) -> list[list[int]]:
        """Groups of virtual stages that share a weight."""
        return self._core.tied

    @property
    def rows(self) -> list[list[str]]:
        """Actions of each rank."""
        return self._core.rows()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._core == other._core

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Callable[[str], Schedule], tuple[str]]:
        return Schedule.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name!r}, ranks={self.ranks}, stages={self.stages}, "
            f"microbatches={self.microbatches})"
        )

    def lower(
        self,
        *,
        skip_edges: Sequence[tuple[int, int]] = (),
        unshard: int | None = None,
        offload: Sequence[int] = (),
        offload_horizon: int = 4,
        reduce_grad: bool = True,
        tied: Sequence[Sequence[int]] = (),
        reduce_norm: bool = False,
        send_recv: bool = True,
        payloads: Mapping[tuple[int, int], str] | None = None,
    ) -> Schedule:
        """Add what an engine needs to execute the computations.

        Args:
            skip_edges: Values that pass stages by, as (source, target) stages.
            unshard: Most stages with whole parameters at once on a rank; adds UNSHARD and RESHARD. Default:
                parameters are never sharded.
            offload: Virtual stages whose activations go to the host between forward and backward.
            offload_horizon: Computations between a RELOAD and its backward.
            reduce_grad: Add REDUCE_GRAD after the last gradient of each stage.
            tied: Groups of virtual stages that share a weight; adds REDUCE_TIED.
            reduce_norm: Add REDUCE_NORM, which sums the squares of the gradients over all ranks, as clipping
                by the global norm needs.
            send_recv: Add sends and receives, in an order that no transport can deadlock on.
            payloads: What a virtual stage hands to another, by (source, target): neighbours or a skip edge. A
                dtype and a shape, "float32[8x512x768]"; several tensors with + between. The gradient that
                comes back has the same. Default: sends and receives do not say.

        Raises:
            ValueError: An argument is wrong, the schedule has what is to be added, or the
                computations cannot be put in order.
        """
        core = self._core
        edges = _costs.lists("skip_edges", skip_edges, 2)
        if edges:
            core = core.with_skip_edges([(source, target) for source, target in edges])
        if unshard is not None:
            core = _core.pipeline_add_unshard_reshard(core, _costs.integer("unshard", unshard))
        offloaded = _costs.integers("offload", offload)
        if offloaded:
            horizon = _costs.integer("offload_horizon", offload_horizon)
            core = _core.pipeline_add_offload(core, offloaded, horizon)
        if flag("reduce_grad", reduce_grad):
            core = _core.pipeline_add_reduce_grad(core)
        groups = _costs.lists("tied", tied)
        if groups:
            core = _core.pipeline_add_tied_reductions(core, groups)
        if flag("reduce_norm", reduce_norm):
            core = _core.pipeline_add_reduce_norm(core)
        carried = _costs.payloads("payloads", {} if payloads is None else payloads)
        if flag("send_recv", send_recv):
            core = _core.pipeline_add_send_recv(core, carried)
        elif carried:
            raise ValueError(
                "[smdp] payloads are carried by sends and receives; allowed: none, or send_recv=True"
            )
        return Schedule(core)

    def to_csv(self) -> str:
        """Give the CSV that torch.distributed.pipelining reads, one line per rank."""
        return _core.pipeline_to_csv(self._core)

    @classmethod
    def from_csv(cls, text: str, *, microbatches: int | None = None) -> Schedule:
        """Read torch's CSV.

        Args:
            text: One line per rank; empty cells are left out.
            microbatches: How many there are. Default: the highest that the text has, and one.

        Raises:
            ValueError: With line, cell and what is allowed.
        """
        count = 0 if microbatches is None else _costs.integer("microbatches", microbatches)
        if microbatches is not None and count < 1:
            raise ValueError(f"[smdp] microbatches = {count} is not valid; allowed: an integer from 1")
        return cls(_core.pipeline_from_csv(_costs.text("text", text), count))

    def to_json(self) -> str:
        """Give JSON that keeps all of the schedule."""
        return _core.pipeline_to_json(self._core)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read what to_json() wrote.

        Raises:
            ValueError: With the field, its value and what is allowed.
        """
        return cls(_core.pipeline_from_json(_costs.text("text", text)))

    def draw(self, path: str | Path | None = None, *, width: int = 120) -> str:
        """Draw the schedule with F = I = W = 1 on a full stage; Simulation.draw() does it with other times.

        Args:
            path: Also write a picture there: .png, or what else matplotlib knows.
            width: Most characters of a line of the text.

        Returns:
            A line per rank: a digit is the forward of that microbatch (mod 10), a letter a backward, ":" a
            weight gradient, "*" an overlapped pair, "." nothing.

        Raises:
            ImportError: There is a path, but no matplotlib.
        """
        each = self.ranks / self.stages
        costs = _costs.make(
            self.stages, forward=each, backward_input=each, backward_weight=each, activation_bytes=each
        )
        simulation = _core.pipeline_simulate(self._core, costs)
        if path is not None:
            _picture.save(self.rows, simulation.timeline(), path, self.name)
        return _core.pipeline_gantt(self._core, simulation, _costs.integer("width", width))


def core_of(schedule: object) -> _core.PipelineSchedule:
    """Give what the core knows of a schedule.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"[smdp] {shown(schedule)} is no schedule; allowed: a smdp.pipeline.Schedule")
    return schedule._core
