# needs: torch transformers
from transformers import AutoModelForCausalLM, GPT2Config

import smdp.torch

config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)
run()
assert next(model.parameters()).is_meta
