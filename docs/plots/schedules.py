"""A picture of each pipeline schedule, one function each: 4 stages, 8 microbatches, F = I = W = 1."""

import matplotlib.pyplot as plt

from smdp import pipeline


def picture(name: str) -> None:
    virtual = pipeline.usual_virtual_stages(name)
    schedule = pipeline.generate(name, stages=4, microbatches=8, virtual_stages=virtual)
    part = 1 / virtual
    result = pipeline.simulate(schedule, forward=part, backward_input=part, backward_weight=part)
    figure, axis = plt.subplots(figsize=(10, 1.9))
    result.plot(axis)
    axis.set_title(f"{name}: makespan {result.makespan:g}, bubble {100 * result.bubble:.1f} %", fontsize=10)
    axis.set_xlim(0, 36)
    figure.tight_layout()


def gpipe() -> None:
    picture("gpipe")


def smp_interleaved() -> None:
    picture("smp_interleaved")


def one_f_one_b() -> None:
    picture("1f1b")


def interleaved_1f1b() -> None:
    picture("interleaved_1f1b")


def looped_bfs() -> None:
    picture("looped_bfs")


def interleaved_zero_bubble() -> None:
    picture("interleaved_zero_bubble")


def zb_1p() -> None:
    picture("zb_1p")


def zb_2p() -> None:
    picture("zb_2p")


def zb_v() -> None:
    picture("zb_v")


def v_half() -> None:
    picture("v_half")


def v_min() -> None:
    picture("v_min")


def dualpipe_v() -> None:
    picture("dualpipe_v")


def forward_only() -> None:
    picture("forward_only")
