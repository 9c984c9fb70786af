"""Model parallel training with the Trainer."""

from smdp.transformers.model_parallel.model_parallel import ModelParallel as ModelParallel
