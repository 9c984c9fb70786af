"""`smdistributed.modelparallel.tensorflow`: comes later."""

raise ImportError(
    "[smdp] this script imports smdistributed.modelparallel.tensorflow; smdp has SageMaker Model Parallel for"
    " PyTorch (smdistributed.modelparallel.torch) and data parallelism for TensorFlow (smdp.tensorflow);"
    " model parallelism for TensorFlow comes later"
)
