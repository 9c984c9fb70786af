"""After a signature's first microbatch nothing runs on placeholders, and ranks leave the forward early."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch_spawn import run


def replays() -> None:
    import torch.distributed as dist
    from pipeline_models import Language, batches, language_loss, made
    from torch import Tensor

    import smdp.torch
    from smdp.torch.pipelining.engine import steps
    from smdp.torch.pipelining.ghosts.ghosts import Ghosts

    ends = []

    class Counted(Language):
        def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
            output = super().forward(ids, mask)
            ends.append(1)
            return output

    runs = []

    class CountedGhosts(Ghosts):
        def _predict(self, given: Any, call: Callable[[Any, Any], Any]) -> Any:
            runs.append(1)
            return super()._predict(given, call)

    steps.Ghosts = CountedGhosts  # type: ignore[misc]
    pipe = smdp.torch.pipeline(made(Counted), stages=2, microbatches=8)
    is_last = dist.get_rank() == 1
    for length, are_new in ((12, True), (12, False), (8, True), (12, False), (8, False)):
        runs.clear()
        ends.clear()
        pipe.train_step(batches(1, length=length)[0], language_loss)
        assert (len(runs) > 0) == are_new
        # The last rank runs all microbatches to the end, the first one only that which it has to record.
        assert len(ends) == (8 if is_last else int(are_new))
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdp").addHandler(handler)
    for length in (1, 2, 3, 4, 5, 6, 7, 9, 10):
        pipe.train_step(batches(1, length=length)[0], language_loss)
    assert len(warned) == (not is_last) and all("each of the last 8 steps" in text for text in warned)


def test_placeholders_are_computed_once_per_signature() -> None:
    run(replays)
