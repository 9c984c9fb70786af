"""A divided model is used like the whole one: autocast, recomputation, compilation, generate()."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, VOCABULARY, Model, farthest, loss_of
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_spawn import run

import smdp.torch

TOKENS = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(7))


def differences(
    prepare: Callable[[Model], object] = lambda model: None, dtype: torch.dtype | None = None
) -> tuple[float, float]:
    """The differences of the loss and of the gradients from those of one process, with dropout."""
    torch.manual_seed(0)
    alone = Model(dropout=0.2)
    model = smdp.torch.tensor_parallel(copy.deepcopy(alone), 2, PLAN)
    losses = []
    for each in (model, alone):
        prepare(each)
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            loss = loss_of(each, TOKENS)
        loss.backward()
        losses.append(loss.item())
    return abs(losses[0] - losses[1]), farthest(model, alone)


def recompute(model: Model, *, use_reentrant: bool) -> None:
    for block in model.blocks:
        inner: Any = block.forward
        block.forward = lambda hidden, inner=inner: checkpoint(inner, hidden, use_reentrant=use_reentrant)


def compile_blocks(model: Model) -> None:
    for block in model.blocks:
        block.compile(backend="aot_eager")


def trains() -> None:
    for reentrant in (True, False):
        assert max(differences(lambda model, kind=reentrant: recompute(model, use_reentrant=kind))) < 1e-6
    assert max(differences(compile_blocks)) < 1e-6
    assert max(differences(lambda model: model.compile(backend="aot_eager"))) < 1e-6
    for dtype, most in ((torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        assert max(differences(dtype=dtype)) < most


def evaluates() -> None:
    torch.manual_seed(0)
    alone = Model(dropout=0.2).eval()
    model = smdp.torch.tensor_parallel(copy.deepcopy(alone), 2, PLAN)
    expected = alone(TOKENS)
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context:
            logits = model(TOKENS)
            torch.testing.assert_close(logits + 0, expected, atol=1e-6, rtol=0)
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def generates() -> None:
    """Ranks with different seeds sample the tokens that the first one would sample alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    alone: Any = LlamaForCausalLM(config).eval()
    model: Any = smdp.torch.tensor_parallel(copy.deepcopy(alone), 2)
    for options in ({"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 2}):
        found: list[Tensor] = []
        for each, seed in ((alone, 3), (model, 3 + dist.get_rank())):
            torch.manual_seed(seed)
            found.append(each.generate(TOKENS, max_new_tokens=4, pad_token_id=0, **options))
        assert torch.equal(*found), options


def warns_of_torchs_clipping() -> None:
    """torch clips by the gradients of a rank's slices, so whole parameters become different."""
    for clip, count in ((torch.nn.utils.clip_grad_norm_, 1), (smdp.torch.clip_grad_norm_, 0)):
        told: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = told.append  # type: ignore[method-assign]
        logging.getLogger("smdp.torch").addHandler(handler)
        torch.manual_seed(0)
        model = smdp.torch.tensor_parallel(Model(), 2, PLAN)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model, TOKENS).backward()
            clip(model.parameters(), 0.1)
            optimizer.step()
        logging.getLogger("smdp.torch").removeHandler(handler)
        found = [each.getMessage() for each in told]
        assert len(found) == count, found
        assert all("Clip with smdp.torch.clip_grad_norm_" in each for each in found)


def all_of_it() -> None:
    trains()
    evaluates()
    warns_of_torchs_clipping()


def test_uses() -> None:
    run(all_of_it)


def test_generate() -> None:
    pytest.importorskip("transformers")
    run(generates)
