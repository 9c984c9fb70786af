"""What a search over settings may count on."""

from __future__ import annotations

import time

from models import gpt2

from smdp import memory


def test_ten_thousand_estimates_of_a_large_model() -> None:
    model = gpt2(128, 25600, 160, vocabulary=51200, positions=2048)
    begin = time.perf_counter()
    peaks = {
        memory.estimate(
            model,
            sequence=2048,
            pipeline=1 << count % 8,
            tensor=1 << count % 4,
            microbatches=64,
            checkpointing=("none", "each", "group_4")[count % 3],
        ).peak
        for count in range(10_000)
    }
    elapsed = time.perf_counter() - begin
    assert len(peaks) > 8
    assert elapsed < 1.5, "about 0.1 s where nothing else runs"
