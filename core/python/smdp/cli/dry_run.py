"""`smdp run --dry-run`: prints what every rank would see, without starting it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from smdp import config, environments
from smdp._errors import ConfigError
from smdp.cli.binding import listed


def describe(
    argv: Sequence[str],
    ranks: Sequence[Mapping[str, str]],
    cpus: Sequence[set[int]] | None = None,
    before: Mapping[str, str] = os.environ,
) -> tuple[str, bool]:
    """Returns a description of the command, the changed variables, and the ranks that smdp detects in them.

    Args:
        argv: The command of a rank.
        ranks: The environment of every rank.
        cpus: The CPUs each rank may run on; None if ranks are not bound.
        before: The environment of `smdp run` itself.

    Returns:
        The text, and whether the ranks could start.
    """
    is_good = True
    lines = [f"would start {len(ranks)} rank{'s' * (len(ranks) > 1)} of: {shlex.join(argv)}"]
    common = set.intersection(*(set(rank.items()) for rank in ranks))
    lines += ["", "every rank gets"]
    lines += _block({name: value for name, value in common if before.get(name) != value})
    removed = sorted(name for name in before if all(name not in rank for rank in ranks))
    if removed:
        lines += ["", f"removed for every rank: {', '.join(removed)}"]
    for number, rank in enumerate(ranks):
        lines += ["", f"rank {number} gets"]
        lines += _block(dict(set(rank.items()) - common))
        if cpus is not None:
            lines.append(f"  CPUs {listed(cpus[number])}")
        try:
            lines.append(f"  smdp.init() detects {_detected(rank)}")
        except ConfigError as error:
            is_good = False
            lines.append(f"  smdp.init() fails: {error}")
    lines += ["", "why", *(f"  {line}" for line in environments.explain(ranks[0]))]
    return "\n".join(lines), is_good


def _block(variables: Mapping[str, str]) -> list[str]:
    return [
        f"  {name}={'***' if config.is_secret(name) else shlex.quote(value)}"
        for name, value in sorted(variables.items())
    ]


def _detected(environ: Mapping[str, str]) -> str:
    launch = environments.detect(environ)
    config.Config.from_environ(environ)
    return (
        f"rank {launch.rank} of {launch.world_size}, local rank {launch.local_rank} of {launch.local_size}, "
        f"rank 0 at {launch.master_addr}:{launch.master_port}"
    )
