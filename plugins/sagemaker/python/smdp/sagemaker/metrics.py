"""Regular expressions by which SageMaker finds figures in the log."""

from __future__ import annotations

_NUMBER = r"([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|inf|nan))"


def metric_definition(name: str, metric: str | None = None) -> dict[str, str]:
    """Find a figure of smdp.print_step()'s lines.

    Args:
        name: The figure, e.g. "accuracy" for `smdp.print_step(step, accuracy=...)`.
        metric: What it is called in SageMaker. Default: "smdp:" and name.

    Returns:
        What the SDK takes in metric_definitions.
    """
    key = rf"\b{name}=" if name == "smdp_step" else rf"\bsmdp_step=\d+ (?:.* )?{name}="
    return {"Name": metric or f"smdp:{name.removeprefix('smdp_')}", "Regex": key + _NUMBER}


# The figures that every smdp.print_step() has, "loss", which most give it, and how long an operation has been
# waiting for other ranks.
METRIC_DEFINITIONS: list[dict[str, str]] = [
    *(
        metric_definition(name)
        for name in ("smdp_step", "loss", "step_ms", "collectives_ms", "exposed_ms", "input_ms")
    ),
    {"Name": "smdp:stalled_seconds", "Regex": r"\[smdp\] rank \d+ of \d+ .* has taken (\d+) s and goes on"},
]
