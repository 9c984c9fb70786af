"""What a step of the replay takes, from the table in benchmarks.md."""

import matplotlib.pyplot as plt

CLUSTERS = ["2 x 2", "2 x 4", "4 x 2", "4 x 1", "8 x 2"]
GLOO = [2.49, 2.89, 2.93, 2.47, 3.13]
SMDP = [1.67, 1.68, 2.48, 2.48, 2.89]
# The bytes at the link's rate, after the first gradients have appeared.
BOUND = [1.66, 1.66, 2.46, 2.46, 2.85]

figure, axis = plt.subplots(figsize=(7, 3.4))
places = range(len(CLUSTERS))
axis.bar([place - 0.2 for place in places], GLOO, 0.4, label="torch DDP on gloo")
axis.bar([place + 0.2 for place in places], SMDP, 0.4, label="smdp, float32")
for place, bound in zip(places, BOUND, strict=True):
    label = "bound" if place == 0 else None
    axis.plot([place - 0.45, place + 0.45], [bound, bound], "k--", linewidth=1, label=label)
axis.set_xticks(list(places), CLUSTERS)
axis.set_xlabel("hosts x ranks per host, 400 Mbit/s each")
axis.set_ylabel("step (s)")
axis.legend()
figure.tight_layout()
