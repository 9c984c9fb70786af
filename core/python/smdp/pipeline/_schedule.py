"""A schedule: an ordered list of actions for every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smdp import _core
from smdp._arguments import flag
from smdp._shown import shown

from . import _costs, _picture


class Schedule:
    """Rows of actions, one row per rank. Created by generate(), from_csv() and from_json().

    Actions are text in the notation of torch.distributed.pipelining: virtual stage, kind, microbatch, e.g.
    "2F0". Kinds are F, I (input gradient), W (weight gradient), B (both), SEND_F, RECV_F, SEND_B, RECV_B,
    UNSHARD, RESHARD, REDUCE_GRAD, "(0F5;3B1)OVERLAP_F_B", and those that smdp adds: OFFLOAD, RELOAD,
    REDUCE_TIED, and REDUCE_NORM, which has no stage. A send or receive may state its payload:
    "0SEND_F1:float32[8x512x768]".
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.PipelineSchedule) -> None:
        if not isinstance(core, _core.PipelineSchedule):
            raise TypeError(
                f"[smdp] Schedule() cannot be created from {shown(core)}; use generate(), from_csv() or"
                " from_json()"
            )
        self._core = core

    @property
    def name(self) -> str:
        """The name that was passed to generate()."""
        return self._core.name

    @property
    def ranks(self) -> int:
        """The number of ranks, one per row."""
        return self._core.ranks

    @property
    def stages(self) -> int:
        """The number of virtual stages on all ranks."""
        return self._core.stages

    @property
    def microbatches(self) -> int:
        """The number of microbatches."""
        return self._core.microbatches

    @property
    def forward_only(self) -> bool:
        """Whether the schedule has no backward."""
        return self._core.forward_only

    @property
    def rank_of(self) -> list[int]:
        """The rank of each virtual stage."""
        return self._core.rank_of

    @property
    def skip_edges(self) -> list[tuple[int, int]]:
        """Values that skip stages, as (source, target) stages."""
        return self._core.skip_edges

    @property
    def tied(self) -> list[list[int]]:
        """Groups of virtual stages that share a weight."""
        return self._core.tied

    @property
    def rows(self) -> list[list[str]]:
        """The actions of each rank."""
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
        """Returns the schedule with the actions that an engine needs besides the computations.

        Args:
            skip_edges: Values that skip stages, as (source, target) stages.
            unshard: The most stages per rank with unsharded parameters at the same time; adds UNSHARD and
                RESHARD. Default: parameters are not sharded.
            offload: Virtual stages whose activations are moved to the host between forward and backward.
            offload_horizon: Number of computations between a RELOAD and its backward.
            reduce_grad: Whether to add REDUCE_GRAD after the last gradient of each stage.
            tied: Groups of virtual stages that share a weight; adds REDUCE_TIED.
            reduce_norm: Whether to add REDUCE_NORM, which sums the squares of the gradients over all ranks,
                for clipping by the global norm.
            send_recv: Whether to add sends and receives, in an order that cannot deadlock on any transport.
            payloads: What a virtual stage sends to another, by (source, target), for neighbors and skip
                edges: a dtype and a shape, "float32[8x512x768]", or several of them joined by "+". The
                gradient in the other direction has the same payload. Default: sends and receives do not
                state their payload.

        Raises:
            ValueError: An argument is invalid, the schedule already has actions that would be added, or the
                computations cannot be ordered.
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
                "[smdp] payloads belong to sends and receives; allowed: send_recv=True, or no payloads"
            )
        return Schedule(core)

    def to_csv(self) -> str:
        """Returns the schedule as CSV for torch.distributed.pipelining, one line per rank."""
        return _core.pipeline_to_csv(self._core)

    @classmethod
    def from_csv(cls, text: str, *, microbatches: int | None = None) -> Schedule:
        """Returns the schedule in a CSV of torch.distributed.pipelining.

        Args:
            text: One line per rank; empty cells are skipped.
            microbatches: Number of microbatches. Default: the highest microbatch in the text plus one.

        Raises:
            ValueError: A cell is invalid. The message has the line, the cell, and what is allowed.
        """
        count = 0 if microbatches is None else _costs.integer("microbatches", microbatches)
        if microbatches is not None and count < 1:
            raise ValueError(f"[smdp] microbatches = {count} is not valid; allowed: an integer of at least 1")
        return cls(_core.pipeline_from_csv(_costs.text("text", text), count))

    def to_json(self) -> str:
        """Returns the complete schedule as JSON."""
        return _core.pipeline_to_json(self._core)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Returns the schedule in JSON written by to_json().

        Raises:
            ValueError: A field is invalid. The message has the field, its value, and what is allowed.
        """
        return cls(_core.pipeline_from_json(_costs.text("text", text)))

    def draw(self, path: str | Path | None = None, *, width: int = 120) -> str:
        """Draws the schedule with F = I = W = 1 on a full stage. For other times, use Simulation.draw().

        Args:
            path: File to write a picture to, in a format that matplotlib supports, e.g. .png.
            width: The most characters per line of the text.

        Returns:
            A line per rank. A digit is the forward of that microbatch (mod 10), a letter a backward, ":" a
            weight gradient, "*" an overlapped pair, and "." idle time.

        Raises:
            ImportError: A path is given, but matplotlib is not installed.
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
    """Returns the core's schedule.

    Raises:
        TypeError: The value is not a Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"[smdp] {shown(schedule)} is not a schedule; allowed: an smdp.pipeline.Schedule")
    return schedule._core
