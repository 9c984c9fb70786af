"""`smdistributed.modelparallel.tensorflow`: an error that says what smdp has for TensorFlow."""

raise ImportError(
    "[smdp] smdistributed.modelparallel.tensorflow is not available: smdp cuts models by PyTorch's modules"
    " and autograd, which models of TensorFlow lack. Train with data parallelism, by smdp.tensorflow or"
    " smdistributed.dataparallel.tensorflow, or write the model in PyTorch for"
    " smdistributed.modelparallel.torch."
)
