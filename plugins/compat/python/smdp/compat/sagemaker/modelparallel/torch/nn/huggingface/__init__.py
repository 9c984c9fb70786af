"""`smdistributed.modelparallel.torch.nn.huggingface`: models that tensor parallelism replaces."""
