"""Prints a layout as Python: a script of plain PyTorch, or the arguments of the Trainer."""

from __future__ import annotations

from smdp.plan.calls import Code, call
from smdp.plan.candidate import Candidate
from smdp.plan.cluster import Cluster

FORMS = ("python", "trainer")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def python(one: Candidate, cluster: Cluster, offload: str = "") -> str:
    """Returns a script that trains in this layout.

    It uses `make_model()`, which returns a model whose output has a `loss`, and `batches`, an iterator of
    dictionaries of tensors, which every rank of a replica reads alike.

    Args:
        one: The layout.
        cluster: The machines.
        offload: Where the layout offloads to: "host", or "disk:" and a folder.
    """
    rows = one.microbatches * one.microbatch_size
    where = Code("model" if one.pipeline == 1 else "pipe")
    body = [
        f"# {_start(cluster)}",
        f"# make_model() and batches are yours: dictionaries of {rows} rows, alike within a replica.",
        *(["import contextlib", ""] if _waits(one) else []),
        "import torch",
        "import torch.distributed as dist",
        "",
        "import smdp.torch",
        "",
        'dist.init_process_group("smdp")',
        "model = make_model()",
        *(_pipeline(one, offload) if one.pipeline > 1 else _layers(one, offload)),
        f"optimizer = torch.optim.AdamW({where}.parameters(), lr=1e-4)",
    ]
    if one.sharding == "zero1":
        sharded = call(
            "smdp.torch.ShardedOptimizer",
            "optimizer",
            where,
            scope="host" if one.sharding_degree else None,
            master_dtype=Code("torch.float32") if one.precision in _DTYPES else None,
            offload=offload if one.offload_optimizer else None,
        )
        body.append(f"optimizer = {sharded}")
    if _is_mixed(one):
        mixed = call("smdp.torch.MixedPrecision", "optimizer", where, dtype=_dtype(one))
        body.append(f"optimizer = {mixed}")
    return "\n".join([*body, "", *_loop(one, "cpu" if cluster.is_cpu else "cuda"), ""])


def _start(cluster: Cluster) -> str:
    if cluster.hosts == 1:
        return f"smdp run -n {cluster.ranks_per_host} train.py"
    return f"{cluster.ranks_per_host} processes on each of {cluster.hosts} hosts, e.g. by torchrun"


def _dtype(one: Candidate) -> Code:
    return Code(f"torch.{_DTYPES[one.precision]}")


def _is_in_shards(one: Candidate) -> bool:
    return one.sharding in ("zero2", "zero3")


def _is_mixed(one: Candidate) -> bool:
    """Returns whether MixedPrecision trains in 16 bits. ShardedDataParallel does so by itself."""
    return one.precision in _DTYPES and not _is_in_shards(one)


def _lowered(one: Candidate) -> list[str]:
    if not _is_mixed(one):
        return []
    return [f"model = {call('smdp.torch.lower_precision', 'model', dtype=_dtype(one))}"]


def _recompute(one: Candidate) -> str | None:
    return None if one.checkpointing == "none" else one.checkpointing


def _pipeline(one: Candidate, offload: str) -> list[str]:
    pipe = call(
        "smdp.torch.pipeline",
        "model",
        stages=one.pipeline,
        microbatches=one.microbatches,
        schedule=one.schedule,
        tensor=one.tensor if one.tensor > 1 and not one.sequence_parallel else None,
        virtual_stages=one.virtual_stages if one.virtual_stages > 1 else None,
        active_microbatches=one.active_microbatches or None,
        recompute=_recompute(one),
        offload=offload if one.offload_activations else None,
        example_inputs=Code("next(batches)"),
    )
    # pipeline() has no argument for sequence parallelism, but takes models that are divided already.
    divided = _divided(one) if one.sequence_parallel else []
    return [*divided, *_lowered(one), f"pipe = {pipe}"]


def _divided(one: Candidate) -> list[str]:
    sequence = True if one.sequence_parallel else None
    text = call("smdp.torch.tensor_parallel", "model", degree=one.tensor, sequence_parallel=sequence)
    return [f"model = {text}"]


def _layers(one: Candidate, offload: str) -> list[str]:
    lines = _divided(one) if one.tensor > 1 else []
    lines += _lowered(one)
    if (policy := _recompute(one)) is not None:
        lines.append(f"model = {call('smdp.torch.checkpoint_activations', 'model', policy=policy)}")
    if one.offload_activations:
        lines.append(f"model = {call('smdp.torch.offload_activations', 'model', offload=offload)}")
    if _is_in_shards(one):
        sharded = call(
            "smdp.torch.ShardedDataParallel",
            "model",
            dtype=_dtype(one) if one.precision in _DTYPES else None,
            degree=one.sharding_degree or one.data,
            reshard_after_forward=False if one.sharding == "zero2" else None,
            backward_passes=one.microbatches if one.microbatches > 1 else None,
        )
        lines.append(f"model = {sharded}")
    elif one.data > 1 or one.sharding == "zero1":
        lines.append(f"model = {call('smdp.torch.DistributedDataParallel', 'model')}")
    return lines


def _waits(one: Candidate) -> bool:
    """Returns whether gradients are reduced after the last microbatch only."""
    return one.pipeline == 1 and one.microbatches > 1 and one.data > 1 and one.sharding in ("none", "zero1")


def _loop(one: Candidate, device: str) -> list[str]:
    lines = ["for batch in batches:", "    optimizer.zero_grad()"]
    last = "    optimizer.step()"
    if one.pipeline > 1:
        scaler = ", scaler=optimizer" if one.precision in _DTYPES else ""
        return [*lines, f"    loss = pipe.train_step(batch{scaler})", last]
    count, indent, batch, share = one.microbatches, "    ", "batch", ""
    if count > 1:
        lines += [
            f"    for number in range({count}):",
            f"        part = {{name: rows.chunk({count})[number] for name, rows in batch.items()}}",
        ]
        indent, batch, share = "        ", "part", f" / {count}"
    if _waits(one):
        lines.append(f"{indent}with model.no_sync() if number < {count - 1} else contextlib.nullcontext():")
        indent += "    "
    forward = f"loss = model(**{batch}).loss{share}"
    if one.precision == "amp":
        lines.append(f'{indent}with torch.autocast("{device}", dtype=torch.bfloat16):')
        forward = f"    {forward}"
    backward = "optimizer.backward(loss)" if _is_mixed(one) else "loss.backward()"
    return [*lines, f"{indent}{forward}", f"{indent}{backward}", last]


def missing_in_trainer(one: Candidate) -> str | None:
    """Returns the part of a layout for which the Trainer's plugins have no argument, or None."""
    return "sequence parallelism" if one.sequence_parallel else None


def _sharded_optimizer(one: Candidate, offload: str) -> object:
    scope = "host" if one.sharding_degree else "world"
    if one.offload_optimizer:
        return {"scope": scope, "offload": offload}
    return scope if one.sharding_degree else True


def _sharded_parameters(one: Candidate) -> object:
    degree = one.sharding_degree or one.data
    return degree if one.sharding == "zero3" else {"degree": degree, "reshard_after_forward": False}


def trainer(one: Candidate, cluster: Cluster, offload: str = "") -> str:
    """Returns the arguments of Hugging Face's Trainer for this layout.

    Args:
        one: The layout.
        cluster: The machines.
        offload: Where the layout offloads to: "host", or "disk:" and a folder.

    Raises:
        ValueError: The Trainer's plugins have no argument for a part of the layout.
    """
    if (what := missing_in_trainer(one)) is not None:
        raise ValueError(f"[smdp] the Trainer has no argument for {what}; use --emit python")
    is_divided = one.pipeline > 1 or one.tensor > 1
    both = {
        "recompute": _recompute(one),
        "offload": offload if one.offload_activations else None,
        "precision": one.precision if one.precision in _DTYPES else None,
        "shard_optimizer": _sharded_optimizer(one, offload) if one.sharding == "zero1" else None,
    }
    if is_divided:
        name, size = "ModelParallel", one.microbatches * one.microbatch_size
        plugin = call(
            "smdp.transformers.ModelParallel",
            stages=one.pipeline,
            microbatches=one.microbatches,
            schedule=one.schedule if one.pipeline > 1 else None,
            tensor=one.tensor if one.tensor > 1 else None,
            virtual_stages=one.virtual_stages if one.virtual_stages > 1 else None,
            active_microbatches=one.active_microbatches or None,
            **both,
        )
    else:
        name, size = "DataParallel", one.microbatch_size
        shards = _sharded_parameters(one) if _is_in_shards(one) else None
        plugin = call("smdp.transformers.DataParallel", **both, shard_parameters=shards)
    sizes = f"per_device_train_batch_size={size}"
    if not is_divided and one.microbatches > 1:
        sizes += f", gradient_accumulation_steps={one.microbatches}"
    if one.precision == "amp":
        sizes += ", bf16=True"
    return "\n".join(
        [
            f"# {_start(cluster)}",
            "# model and data are yours.",
            f"from smdp.transformers import {name}, Trainer, TrainingArguments",
            "",
            f'args = TrainingArguments("output", {sizes})',
            f"plugins = [{plugin.removeprefix('smdp.transformers.')}]",
            "trainer = Trainer(model, args, train_dataset=data, plugins=plugins)",
            "trainer.train()",
            "",
        ]
    )
