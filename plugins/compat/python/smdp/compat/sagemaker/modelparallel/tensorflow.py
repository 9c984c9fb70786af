"""`smdistributed.modelparallel.tensorflow`: not supported yet."""

raise ImportError(
    "[smdp] smdistributed.modelparallel.tensorflow is not supported yet: smdp has SageMaker Model Parallel"
    " only for PyTorch (smdistributed.modelparallel.torch); for TensorFlow, it has data parallelism"
    " (smdp.tensorflow)"
)
