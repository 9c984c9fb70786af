"""The API of SageMaker Model Parallel 1.x on our pipelines."""
