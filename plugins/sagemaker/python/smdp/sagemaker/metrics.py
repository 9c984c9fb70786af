"""Regular expressions with which SageMaker finds metrics in the log."""

from __future__ import annotations

_NUMBER = r"([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|inf|nan))"


def metric_definition(name: str, metric: str | None = None) -> dict[str, str]:
    """Returns the definition of a metric that smdp.print_step() prints.

    Args:
        name: Name of the figure, e.g. "accuracy" for `smdp.print_step(step, accuracy=...)`.
        metric: Name of the metric in SageMaker. The default is "smdp:" and `name`.

    Returns:
        A dict with "Name" and "Regex", for the SDK's metric_definitions.
    """
    key = rf"\b{name}=" if name == "smdp_step" else rf"\bsmdp_step=\d+ (?:.* )?{name}="
    return {"Name": metric or f"smdp:{name.removeprefix('smdp_')}", "Regex": key + _NUMBER}


# The figures in every line of smdp.print_step(), "loss", which most scripts pass to it, and the seconds that
# an operation has waited for other ranks.
METRIC_DEFINITIONS: list[dict[str, str]] = [
    *(
        metric_definition(name)
        for name in ("smdp_step", "loss", "step_ms", "collectives_ms", "exposed_ms", "input_ms")
    ),
    {"Name": "smdp:stalled_seconds", "Regex": r"\[smdp\] rank \d+ of \d+ .* is still running after (\d+) s"},
]
