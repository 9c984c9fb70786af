"""Scaling efficiency of data parallel training, by the cost model: smdp beside ring all_reduce."""

import matplotlib.pyplot as plt

from smdp.cli import gradients, simulate

hosts = [2**power for power in range(13)]
model = gradients.parse("--gradients", "bert-large")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
for link, axis in zip(("100Gbit", "25Gbit"), axes, strict=True):
    for compression, name in (("none", "smdp"), ("bf16", "smdp, bf16 on the wire")):
        rows = simulate.simulate_ddp(
            hosts=hosts,
            ranks_per_host=8,
            link=link,
            model=model,
            forward_ms=100,
            backward_ms=200,
            compression=compression,
        )
        axis.plot(hosts, [100 * row["efficiency"] for row in rows], marker=".", label=name)
    axis.plot(hosts, [100 * row["ring_efficiency"] for row in rows], "--", marker=".", label="ring")
    axis.set_xscale("log", base=2)
    axis.set_xlabel(f"hosts of 8 ranks, {link} each")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("scaling efficiency (%)")
axes[0].set_ylim(0, 100)
axes[0].legend()
figure.suptitle("Simulated: BERT-large, 300 ms of compute")
figure.tight_layout()
