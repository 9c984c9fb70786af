"""Placement of pipeline, tensor and data parallelism on the ranks of a job, and the resulting groups.

As in SageMaker's model parallel library, a strategy is a permutation of the letters D, P and T; the rightmost
letter varies fastest over ranks. "cluster" means DPT, "spread" means TPD.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple, TypeAlias

from smdp._shown import shown

__all__ = ["STRATEGIES", "Coordinates", "Kind", "Placement"]

STRATEGIES = ("cluster", "spread", *("".join(letters) for letters in permutations("DPT")))
"""All placement strategies: the two names from SMP, and the permutations of D, P and T."""

Kind: TypeAlias = Literal["pp", "tp", "rdp", "dp", "mp"]
"""A kind of group: pipeline, tensor, reduced-data, data or model parallel."""

# The coordinates that all ranks of a group have in common.
_SHARED: dict[str, tuple[str, ...]] = {
    "pp": ("rdp", "tp"),
    "tp": ("rdp", "pp"),
    "rdp": ("pp", "tp"),
    "dp": ("pp",),
    "mp": ("rdp",),
}
_LETTERS = {"D": "rdp", "P": "pp", "T": "tp"}


class Coordinates(NamedTuple):
    """A rank's position along each axis."""

    pp: int
    tp: int
    rdp: int


@dataclass(frozen=True)
class Placement:
    """The arrangement of `pipeline` x `tensor` x `data` ranks.

    Attributes:
        pipeline: Number of ranks that hold different stages of one model (pp).
        tensor: Number of ranks that hold different slices of one stage (tp).
        data: Number of ranks that hold the same stage and slice (rdp).
        strategy: "cluster", "spread", or a permutation of D, P and T.

    Raises:
        ValueError: A size is not a positive integer, or the strategy does not exist.
    """

    pipeline: int = 1
    tensor: int = 1
    data: int = 1
    strategy: str = "cluster"

    def __post_init__(self) -> None:
        for name in ("pipeline", "tensor", "data"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"[smdp] {name} = {shown(value, 120)} is not valid; allowed: an integer of at least 1"
                )
        if not isinstance(self.strategy, str) or self.strategy not in STRATEGIES:
            allowed = ", ".join(STRATEGIES)
            raise ValueError(
                f"[smdp] placement_strategy = {shown(self.strategy, 120)} is not valid; allowed: {allowed}"
            )

    @classmethod
    def of_world(
        cls, world_size: int, *, pipeline: int = 1, tensor: int = 1, strategy: str = "cluster"
    ) -> Placement:
        """Returns the placement that uses all ranks of the world, by setting `data` accordingly.

        Raises:
            ValueError: pipeline x tensor does not divide the world size.
        """
        one = cls(pipeline, tensor, 1, strategy)
        if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
            raise ValueError(
                f"[smdp] world_size = {shown(world_size, 120)} is not valid; allowed: an integer of at least"
                " 1"
            )
        if world_size % one.size != 0:
            raise ValueError(
                f"[smdp] world_size = {world_size} is not valid; allowed: a multiple of"
                f" pipeline x tensor = {pipeline} x {tensor} = {one.size}"
            )
        return cls(pipeline, tensor, world_size // one.size, strategy)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.pipeline * self.tensor * self.data

    def rank(self, *, pp: int, tp: int, rdp: int) -> int:
        """Returns the rank at the given coordinates.

        Raises:
            ValueError: A coordinate is out of range.
        """
        place = Coordinates(pp, tp, rdp)._asdict()
        rank = 0
        for name, size in self._axes():
            _check_index(name, place[name], size)
            rank = rank * size + place[name]
        return rank

    def coordinates(self, rank: int) -> Coordinates:
        """Returns the coordinates of a rank.

        Raises:
            ValueError: There is no such rank.
        """
        _check_index("rank", rank, self.size)
        place = {}
        for name, size in reversed(self._axes()):
            rank, place[name] = divmod(rank, size)
        return Coordinates(**place)

    def group(self, kind: Kind, rank: int) -> tuple[int, ...]:
        """Returns the members, in ascending order, of the group that a rank belongs to.

        Args:
            kind: "pp": ranks with the same data and slice; "tp": the same data and stage; "rdp": the same
                stage and slice; "dp": the same stage; "mp": the same data.
            rank: The rank in the world.

        Raises:
            ValueError: There is no such kind or rank.
        """
        _check_kind(kind)
        own = self.coordinates(rank)._asdict()
        sizes = dict(self._axes())
        choices = {
            name: (own[name],) if name in _SHARED[kind] else range(size) for name, size in sizes.items()
        }
        return tuple(
            sorted(
                self.rank(pp=pp, tp=tp, rdp=rdp)
                for pp in choices["pp"]
                for tp in choices["tp"]
                for rdp in choices["rdp"]
            )
        )

    def groups(self, kind: Kind) -> list[tuple[int, ...]]:
        """Returns all groups of a kind, ordered by their first rank. Each rank is in exactly one of them."""
        _check_kind(kind)
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            place = self.coordinates(rank)._asdict()
            groups.setdefault(tuple(place[name] for name in _SHARED[kind]), []).append(rank)
        return [tuple(members) for members in groups.values()]

    def group_rank(self, kind: Kind, rank: int) -> int:
        """Returns a rank's index within its group."""
        return self.group(kind, rank).index(rank)

    def _axes(self) -> list[tuple[str, int]]:
        """Returns the names and sizes of the axes, the slowest-varying one first."""
        order = {"cluster": "DPT", "spread": "TPD"}.get(self.strategy, self.strategy)
        sizes = {"pp": self.pipeline, "tp": self.tensor, "rdp": self.data}
        return [(_LETTERS[letter], sizes[_LETTERS[letter]]) for letter in order]


def _check_index(name: str, value: object, size: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"[smdp] {name} = {shown(value, 120)} is not valid; allowed: an integer, 0 to {size - 1}"
        )
    if not 0 <= value < size:
        raise ValueError(f"[smdp] {name} = {value} is not valid; allowed: 0 to {size - 1}")


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or kind not in _SHARED:
        raise ValueError(f"[smdp] group {shown(kind, 120)} is not valid; allowed: {', '.join(_SHARED)}")
