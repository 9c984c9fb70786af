"""Trainers whose model lies in stages on several ranks."""

from smdp.transformers.model_parallel.model_parallel import ModelParallel as ModelParallel
