"""`smdp simulate ddp`: predicts the time of a data-parallel training step with the cost model."""

from __future__ import annotations

import json
import re
from typing import Any

from smdp import _core, config
from smdp.cli import gradients

# Fraction of 1500-byte Ethernet frames that is payload.
_PAYLOAD = 0.956
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_link(option: str, text: str) -> float:
    """Parses a rate such as 100Gbit, 400mbit or 25Gbit/s; returns bytes of payload per second.

    Raises:
        ConfigError: The text is not a rate above 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])bit(?:/s|ps)?", text.strip().lower())
    if found is None or float(found[1]) == 0:
        raise config.invalid(option, text, "a rate above 0, e.g. 400Mbit or 100Gbit")
    return float(found[1]) * _UNITS[found[2]] / 8 * _PAYLOAD


def check_time(option: str, value: float) -> None:
    """Checks a time; in particular, rejects infinity and NaN.

    Raises:
        ConfigError: The value is not a number from 0 to 1e9.
    """
    if not 0 <= value <= 1e9:
        raise config.invalid(option, value, "a number from 0 to 1e9")


def simulate_ddp(
    *,
    hosts: list[int],
    ranks_per_host: int,
    link: str,
    model: gradients.Layers,
    forward_ms: float,
    backward_ms: float,
    compression: str = "none",
    latency_us: float = 30,
) -> list[dict[str, Any]]:
    """Predicts the time of a step, and returns one row for each number of hosts.

    Args:
        hosts: Numbers of hosts.
        ranks_per_host: Ranks on each host, which share its link.
        link: Rate of a host's link, e.g. "100Gbit".
        model: Layers in forward order.
        forward_ms: Milliseconds of the whole forward, divided among layers by their numbers of parameters.
        backward_ms: Milliseconds of the whole backward, divided in the same way.
        compression: Type of the gradients on the wire.
        latency_us: Microseconds from a send until the receiver wakes up.

    Raises:
        ConfigError: The link's rate or a time is invalid.
        ValueError: Another argument is invalid.
    """
    bandwidth = parse_link("--link", link)
    for option, value in (
        ("--forward-ms", forward_ms), ("--backward-ms", backward_ms), ("--latency-us", latency_us)
    ):  # fmt: skip
        check_time(option, value)
    sizes = [sum(layer) for layer in model]
    # Embeddings have many parameters but little computation, so a layer's weight is capped at the median.
    limit = sorted(sizes)[len(sizes) // 2]
    weights = [min(size, limit) for size in sizes]
    total = sum(weights)
    layers = [
        (forward_ms / 1e3 * weight / total, backward_ms / 1e3 * weight / total, layer)
        for weight, layer in zip(weights, model, strict=True)
    ]
    rows = []
    for count in hosts:
        settings: dict[str, Any] = {
            "hosts": count,
            "ranks_per_host": ranks_per_host,
            "bandwidth": bandwidth,
            "hop_seconds": latency_us / 1e6,
            "compression": compression,
        }
        ours = _core.simulate_ddp(layers, **settings)
        ring = _core.simulate_ddp(layers, **settings | {"compression": "none"}, algorithm="ring")
        rows.append(
            {
                "hosts": count,
                "ranks": count * ranks_per_host,
                "step_seconds": ours.step_seconds,
                "compute_seconds": ours.compute_seconds,
                "exposed_seconds": ours.exposed_seconds,
                "efficiency": ours.efficiency,
                "ring_step_seconds": ring.step_seconds,
                "ring_efficiency": ring.efficiency,
                "buffers": ours.buffers,
            }
        )
    return rows


def as_text(rows: list[dict[str, Any]], model: gradients.Layers, link: str) -> str:
    """Returns the rows as a table."""
    megabytes = 4 * sum(sum(layer) for layer in model) / 1e6
    lines = [
        (
            f"# simulated by the cost model: {megabytes:.1f} MB of float32 gradients, {link} per host, "
            f"{1e3 * rows[0]['compute_seconds']:.1f} ms of compute"
        ),
        (
            f"# {'hosts':>6} {'ranks':>7} {'step (ms)':>10} {'exposed (ms)':>13} {'efficiency':>11} "
            f"{'ring, fp32 (ms)':>16} {'efficiency':>11}"
        ),
    ]
    for row in rows:
        lines.append(
            f"  {row['hosts']:>6} {row['ranks']:>7} {1e3 * row['step_seconds']:>10.1f} "
            f"{1e3 * row['exposed_seconds']:>13.1f} {100 * row['efficiency']:>9.1f} % "
            f"{1e3 * row['ring_step_seconds']:>16.1f} {100 * row['ring_efficiency']:>9.1f} %"
        )
    return "\n".join(lines)


def as_json(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as JSON."""
    return json.dumps(rows, indent=2)
