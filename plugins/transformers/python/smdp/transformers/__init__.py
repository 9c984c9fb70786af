"""The Hugging Face plugin: transformers.Trainer on smdp.

Example:
    >>> from smdp.transformers import DataParallel, Trainer, TrainingArguments
    >>> trainer = Trainer(model, args, plugins=[DataParallel(compression="bf16")])  # doctest: +SKIP
"""

from __future__ import annotations

from smdp._frameworks import require

require("smdp.transformers", "transformers", "accelerate")

from smdp.transformers.data_parallel import DataParallel as DataParallel
from smdp.transformers.hint import install as install
from smdp.transformers.hint import uninstall as uninstall
from smdp.transformers.model_parallel import ModelParallel as ModelParallel
from smdp.transformers.plugin import Plugin as Plugin
from smdp.transformers.preemption import PreemptionCallback as PreemptionCallback
from smdp.transformers.trainer import Seq2SeqTrainer as Seq2SeqTrainer
from smdp.transformers.trainer import Trainer as Trainer
from smdp.transformers.trainer import with_plugins as with_plugins
from smdp.transformers.training_arguments import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
from smdp.transformers.training_arguments import TrainingArguments as TrainingArguments

install()

__all__ = [
    "DataParallel",
    "ModelParallel",
    "Plugin",
    "PreemptionCallback",
    "Seq2SeqTrainer",
    "Seq2SeqTrainingArguments",
    "Trainer",
    "TrainingArguments",
    "install",
    "uninstall",
    "with_plugins",
]
