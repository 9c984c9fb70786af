"""Checks that training arguments describe all processes that were started."""

from __future__ import annotations

import torch.distributed as dist
from accelerate import DistributedType
from transformers import TrainingArguments

from smdp.environments import detect, find
from smdp.environments.choice import warn_alone
from smdp.environments.single import SingleProcess


def check_started(plugin: str, args: TrainingArguments) -> None:
    """Refuses arguments with which processes would train alone, and warns if only one was started.

    Args:
        plugin: The name of the plugin, for the message.
        args: The arguments. Their process group, if any, has been created.

    Raises:
        ValueError: The arguments describe one process, but a launcher has started several. Or they describe
            several, but Accelerate would train each alone because it found no GPU and use_cpu is not set.
        smdp.ConfigError: The launcher's variables are not valid.
    """
    if args.world_size > 1:
        known = args.distributed_state
        if known is not None and known.distributed_type == DistributedType.NO:
            raise ValueError(
                f"[smdp] the plugin {plugin}: Accelerate would train each of the {args.world_size} ranks"
                " alone, because there is no GPU and the arguments, with"
                f" ddp_backend={args.ddp_backend!r}, do not select the CPU."
                ' Pass use_cpu=True, or ddp_backend="smdp".'
            )
        return
    started = dist.get_world_size() if dist.is_initialized() else detect(needs_master=False).world_size
    if started > 1:
        raise ValueError(
            f"[smdp] the plugin {plugin}: {started} processes were started, but the arguments, a"
            f" {type(args).__module__}.{type(args).__name__}, describe only one, so each process would train"
            ' alone. Use smdp.transformers.TrainingArguments, or pass ddp_backend="smdp".'
        )
    if find() is SingleProcess:
        warn_alone()
