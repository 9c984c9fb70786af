"""`smdistributed.modelparallel.torch.nn.huggingface`: of tensor parallelism; can be imported."""
