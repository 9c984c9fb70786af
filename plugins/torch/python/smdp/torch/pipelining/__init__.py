"""Pipeline parallelism by ghost execution: the stages of a model run on several ranks."""
