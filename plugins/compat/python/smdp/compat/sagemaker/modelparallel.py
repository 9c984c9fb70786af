"""`smdistributed.modelparallel`: not there yet."""

raise ImportError(
    "[smdp] this script imports smdistributed.modelparallel; smdp has the data parallel library"
    " (smdistributed.dataparallel) and not yet the model parallel one. torch.distributed.pipelining and FSDP2"
    " run on smdp: see the page on the PyTorch backend."
)
