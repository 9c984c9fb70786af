"""A model's trace with all measured times, from which the weights of its units are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from smdp.partition import Trace
from smdp.partition.steady import Weights
from smdp.torch.pipelining.analysis.samples import Passes, Samples, merged


@dataclass(frozen=True, slots=True)
class SampledTrace:
    """The measurements of a rank, as plain data that ranks exchange.

    Attributes:
        shape: The trace without times.
        kinds: For each unit, the kinds of work that it does: its own call, and the functions after it.
        samples: The samples by kind.
        joined: For each unit, the bytes that it gets from the unit before, without other code in between.
    """

    shape: Trace
    kinds: tuple[tuple[str, ...], ...]
    samples: dict[str, Samples]
    joined: tuple[int, ...]

    def by_time(self) -> Weights:
        """Returns the units weighed by the least measured times."""
        spreads = {kind: samples.spread() for kind, samples in self.samples.items()}
        return self._weights(Samples.least, spreads)

    def by_work(self) -> Weights:
        """Returns the units weighed by times computed from operations, which are equal in every run."""
        return self._weights(Samples.mean_work, {})

    def _weights(self, time_of: Callable[[Samples], Passes], spreads: dict[str, float]) -> Weights:
        times = {kind: time_of(samples) for kind, samples in self.samples.items()}
        units, parts = [], []
        for unit, kinds in zip(self.shape.units, self.kinds, strict=True):
            found = [times[kind] for kind in kinds]
            units.append(
                replace(
                    unit,
                    forward=sum(each.forward for each in found),
                    backward_input=sum(each.backward_input for each in found),
                    backward_weight=sum(each.backward_weight for each in found),
                )
            )
            seconds: Counter[str] = Counter()
            for kind, each in zip(kinds, found, strict=True):
                seconds[kind] += each.total  # type: ignore[assignment]
            parts.append(dict(seconds))
        return Weights(replace(self.shape, units=tuple(units)), tuple(parts), spreads)


def pooled(traces: Sequence[SampledTrace]) -> SampledTrace:
    """Returns rank 0's trace with the samples of all ranks, which were disturbed at different moments."""
    samples = merged([each.samples for each in traces])
    first = traces[0]
    return replace(first, samples={kind: samples[kind] for kind in first.samples})
