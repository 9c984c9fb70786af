"""A language model of 12 layers on 4 ranks, cut in three ways.

python docs/examples/split_a_model.py
"""

from __future__ import annotations

from smdp.partition import Tied, Trace, Unit, assignments, partition

MIB = 2**20


def language_model(layers: int) -> Trace:
    """A light embedding, equal layers, and a head three times as heavy whose weight is the embedding's."""
    embedding = Unit(name="transformer.wte", forward=1e-4, parameter_bytes=150 * MIB, cut_bytes=3 * MIB)
    body = [
        Unit(
            name=f"transformer.h.{layer}",
            forward=1e-3,
            backward_input=1e-3,
            backward_weight=1e-3,
            parameter_bytes=28 * MIB,
            activation_bytes=40 * MIB,
            cut_bytes=3 * MIB,
        )
        for layer in range(layers)
    ]
    head = Unit(
        name="lm_head",
        forward=3e-3,
        backward_input=3e-3,
        backward_weight=3e-3,
        parameter_bytes=150 * MIB,
        activation_bytes=100 * MIB,
    )
    weight = Tied(name="transformer.wte.weight", bytes=150 * MIB, units=("transformer.wte", "lm_head"))
    return Trace(units=(embedding, *body, head), tied=(weight,))


def main() -> None:
    trace = language_model(12)
    link = {"latency": 20e-6, "bandwidth": 12e9}
    print(assignments(trace, partition(trace, ranks=4, microbatches=16, **link)))
    interleaved = partition(
        trace, ranks=4, virtual_stages=2, microbatches=16, schedule="interleaved_1f1b", **link
    )
    print(f"\nTwo virtual stages per rank: {interleaved.step * 1e3:.4g} ms, bubble {interleaved.bubble:.1%}")
    smp = partition(trace, ranks=4, microbatches=16, algorithm="smp")
    print("\n" + assignments(trace, smp))


if __name__ == "__main__":
    main()
