"""`smp.nn.huggingface`: models of transformers that tensor parallelism replaces."""

from __future__ import annotations

from smdp.torch.model_parallel.nn.huggingface import bert as bert
from smdp.torch.model_parallel.nn.huggingface import gpt2 as gpt2
from smdp.torch.model_parallel.nn.huggingface import gptj as gptj
from smdp.torch.model_parallel.nn.huggingface import gptneo as gptneo
from smdp.torch.model_parallel.nn.huggingface import roberta as roberta
