"""Scaling efficiency of data parallel training, by the cost model: smdp and ring all_reduce."""

import matplotlib.pyplot as plt

from smdp.cli import gradients, simulate

hosts = [2**power for power in range(13)]
model = gradients.parse("--gradients", "bert-large")
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for link, axis in zip(("100Gbit", "25Gbit"), axes, strict=True):
    for compression, name, color in (("none", "smdp", "#2563eb"), ("bf16", "smdp, bf16", "#60a5fa")):
        rows = simulate.simulate_ddp(
            hosts=hosts,
            ranks_per_host=8,
            link=link,
            model=model,
            forward_ms=100,
            backward_ms=200,
            compression=compression,
        )
        axis.plot(hosts, [100 * row["efficiency"] for row in rows], marker=".", color=color, label=name)
    ring = [100 * row["ring_efficiency"] for row in rows]
    axis.plot(hosts, ring, "--", marker=".", color="#94a3b8", label="ring, float32")
    axis.set_xscale("log", base=2)
    axis.set_xlabel(f"hosts of 8 ranks, {link} each")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("scaling efficiency (%)")
axes[0].set_ylim(0, 100)
axes[0].legend()
figure.suptitle("Simulated: BERT-large, 300 ms of compute", x=0.01, ha="left", fontsize=11, weight="bold")
