"""Train a language model with a loop of one's own on Accelerate.

smdp run -n 2 docs/examples/accelerate_text.py
accelerate launch --cpu --num_processes 2 --mpirun_hostfile HOSTS docs/examples/accelerate_text.py
"""

from __future__ import annotations

import argparse
import math

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from text_model import make_model, make_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")]
    )
    train, held_out = make_rows()
    batch = 16 // accelerator.num_processes
    model = make_model()
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), 1e-3),
        torch.utils.data.DataLoader(train, batch, shuffle=True),
        torch.utils.data.DataLoader(held_out, batch),
    )
    step = 0
    while step < options.steps:
        for rows in train_loader:
            loss = model(**rows).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step}: loss {accelerator.reduce(loss.detach(), 'mean').item():.3f}")
            if step == options.steps:
                break
    model.eval()
    with torch.no_grad():
        losses = [accelerator.gather_for_metrics(model(**rows).loss.repeat(batch)) for rows in test_loader]
    loss = torch.cat(losses).mean().item()
    accelerator.print(f"held-out text: loss {loss:.3f} per byte, perplexity {math.exp(loss):.2f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
