"""smp.init's configuration: defaults, the variable, and what wrong keys and values get."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from smdp import pipeline
from smdp.placement import STRATEGIES
from smdp.torch.model_parallel.job.configuration import Configuration


def read(config: dict[str, Any] | None = None, variable: Any = None) -> Configuration:
    text = variable if isinstance(variable, str) else json.dumps(variable)
    return Configuration.read(config, {} if variable is None else {"SM_HP_MP_PARAMETERS": text})


def test_defaults_are_those_of_the_original() -> None:
    found = read()
    assert (found.partitions, found.pipeline_parallel_degree, found.microbatches) == (1, 1, 1)
    assert (found.pipeline, found.schedule, found.virtual_stages) == ("interleaved", "smp_interleaved", None)
    assert (found.optimize, found.memory_weight, found.placement_strategy) == ("memory", 0.8, "cluster")
    assert (found.auto_partition, found.default_partition, found.active_microbatches) == (True, 0, 3)
    assert (found.ddp, found.ddp_port, found.ddp_dist_backend) == (False, None, "auto")
    assert (found.tensor_parallel_degree, found.sharded_data_parallel_degree) == (1, 1)
    assert (found.sdp_reduce_bucket_size, found.sdp_max_live_parameters) == (5e8, 1e9)
    assert not any((found.fp16, found.bf16, found.prescaled_batch, found.shard_optimizer_state))
    assert read({"partitions": 4}).active_microbatches == 6
    assert read({"partitions": 4, "active_microbatches": 1}).active_microbatches == 1
    assert read({"optimize": "speed"}).memory_weight == 0.2
    assert read({"optimize": "speed", "memory_weight": 1}).memory_weight == 1.0


def test_the_variable_goes_before_the_script_key_by_key() -> None:
    found = read({"partitions": 2, "microbatches": 8}, {"partitions": 4, "ddp": True})
    assert (found.partitions, found.microbatches, found.ddp) == (4, 8, True)
    assert read({"partitions": 2}, {"pipeline_parallel_degree": 4}).partitions == 4
    assert read({"pipeline_parallel_degree": 2, "partitions": 2}).partitions == 2
    assert read({}, "  ") == read()
    assert hash(read({"partitions": 2})) == hash(read(None, {"partitions": 2}))


def test_pipelines_are_schedules() -> None:
    found = [read({"pipeline": name}).schedule for name in ("interleaved", "simple", "_only_forward")]
    assert found == ["smp_interleaved", "gpipe", "forward_only"]
    assert [read({"schedule": name}).schedule for name in pipeline.SCHEDULES] == list(pipeline.SCHEDULES)
    assert read({"schedule": None, "seed": None, "ddp_port": None}) == read()
    assert [read({"placement_strategy": name}).placement_strategy for name in STRATEGIES] == list(STRATEGIES)


def test_defaults_may_be_given() -> None:
    read({"tensor_parallel_degree": 1, "fp16": False, "sdp_reduce_bucket_size": 5e8, "contiguous": True})
    read({"fp16_params": 0, "bf16": False, "shard_optimizer_state": False, "sharded_data_parallel_degree": 1})
    read({"prescaled_batch": True, "load_partition": False, "partition_file": None, "horovod": False})
    assert read({"skip_tracing": 1}).skip_tracing is True  # the SDK's validator lets 1 and 0 pass


def test_what_tunes_a_feature_is_accepted_while_the_feature_is_off() -> None:
    tuned = read(
        {
            "sharded_data_parallel_degree": 1,
            "sdp_reduce_bucket_size": 1e8,
            "sdp_param_persistence_threshold": 1e5,
            "sdp_max_live_parameters": 2e9,
            "sdp_hierarchical_allgather": False,
            "sdp_gradient_clipping": 0.5,
            "offload_activations": False,
            "activation_loading_horizon": 7,
        }
    )
    assert (tuned.sdp_reduce_bucket_size, tuned.activation_loading_horizon) == (100_000_000, 7)


def test_undocumented_keys_are_ignored_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read({"static_mode": True, "fast_mode": 3, "_match_weights": None}) == read()
    assert [record.getMessage() for record in caplog.records] == [
        "[smdp] these keys have no effect and are ignored: _match_weights, fast_mode, static_mode"
    ]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"microbatches": 0}, "The number of microbatches must be a positive integer."),
        ({"microbatches": True}, "The number of microbatches must be a positive integer."),
        (
            {"partitions": "2"},
            "The number of partitions must be a positive integer. Got partitions = '2'. A numb",
        ),
        ({"partitions": 2.0}, "The number of partitions must be a positive integer."),
        ({"partitions": None}, "The number of partitions must be a positive integer."),
        ({"partitions": 10**5000}, "Got partitions = an int of"),
        ({"active_microbatches": -1}, "The number of active_microbatches must be a positive integer."),
        ({"pipeline": "1f1b"}, "pipeline must be a value in: ['simple', 'interleaved', '_only_forward']."),
        ({"pipeline": ["simple"]}, "pipeline must be a value in: "),
        ({"placement_strategy": "PDP"}, "placement_strategy must be a value in: ['spread', 'cluster']."),
        ({"optimize": "size"}, "optimize must be a value in: ['speed', 'memory']."),
        ({"ddp": "true"}, "ddp must be a value in: [True, False]. Got ddp = 'true'. true and false are wri"),
        ({"horovod": 2}, "horovod must be a value in: [True, False]."),
        ({"load_partition": 0.0}, "load_partition must be a value in: [True, False]."),
        ({"partition_file": 3}, "'partition_file' must be a str."),
        ({"memory_weight": 1.5}, "memory_weight must be between 0.0 and 1.0!"),
        ({"memory_weight": float("nan")}, "memory_weight must be between 0.0 and 1.0!"),
        (
            {"memory_weight": "0.5"},
            "memory_weight must be between 0.0 and 1.0! Got memory_weight = '0.5'. A numb",
        ),
        ({"auto_partition": False}, "default_partition must be supplied if auto_partition is set to False!"),
        (
            {"default_partition": 2, "partitions": 2},
            "default_partition must be less than the number of partitions!",
        ),
        ({"default_partition": -1}, "default_partition must be an integer of at least 0."),
        ({"ddp_port": 1234}, "`ddp_port` needs `ddp` to be set as well"),
        ({"ddp_dist_backend": "auto", "ddp": False}, "`ddp_dist_backend` needs `ddp` to be set as well"),
        ({"ddp_dist_backend": "gloo", "ddp": True}, "ddp_dist_backend must be a value in: ['auto', 'nccl']."),
        ({"ddp_port": -1, "ddp": True}, "Invalid port number -1."),
        ({"ddp_port": 70000, "ddp": True}, "Invalid port number 70000."),
        ({"ddp": True, "horovod": True}, "'ddp' and 'horovod' cannot be simultaneously enabled."),
        ({"horovod": True}, "horovod = True is for TensorFlow only"),
        ({"contiguous": False}, "contiguous = False is for TensorFlow only"),
        ({"load_partition": True}, "load_partition = True needs partition_file"),
        (
            {"tensor_parallel_degree": 2},
            "tensor_parallel_degree = 2 divides modules over data-parallel ranks, so `ddp` must be set",
        ),
        ({"sharded_data_parallel_degree": 2}, "sharded_data_parallel_degree = 2 distributes parameters over"),
        (
            {"sharded_data_parallel_degree": 2, "partitions": 2, "ddp": True},
            "sharded_data_parallel_degree = 2 and partitions = 2 exclude each other",
        ),
        ({"sdp_max_live_parameters": 1.5}, "sdp_max_live_parameters must be a whole number of at least 1."),
        ({"offload_directory": 3}, "'offload_directory' must be a str."),
        ({"fp16": True, "bf16": True}, "fp16 = True and bf16 = True exclude each other"),
        ({"bf16": True}, "bf16 = True needs sharded data parallelism"),
        (
            {"shard_optimizer_state": True},
            "shards over replicas, so `ddp` must be set as well. Got ddp = False",
        ),
        (
            {"shard_optimizer_state": True, "ddp": True, "sharded_data_parallel_degree": 2},
            "sharded_data_parallel_degree = 2 exclude each other",
        ),
        ({"schedule": "1f1B"}, "did you mean '1f1b'?"),
        (
            {"schedule": "zb_v", "virtual_stages": 3},
            "virtual_stages = 3 does not work with schedule = 'zb_v'",
        ),
        (
            {"virtual_stages": 2, "auto_partition": False, "default_partition": 0},
            "virtual_stages = 2 cannot be used while auto_partition is off",
        ),
        ({"virtual_stages": 0}, "The number of virtual_stages must be a positive integer."),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"microbatch": 2}, "there is no key 'microbatch'; did you mean 'microbatches'?"),
        ({"pipeline_paralel_degree": 2}, "did you mean 'pipeline_parallel_degree'?"),
        ({"zzz": 2}, "there is no key 'zzz'. Known keys: _match_weights, activation_loading_horizon, "),
        ({3: 2}, "the configuration has the key 3; keys must be of type str"),
        ({"partitions": 2, "pipeline_parallel_degree": 4}, "two names of one key"),
        ([("partitions", 2)], "smp.init() got [('partitions', 2)]; expected a dict"),
    ],
)
def test_wrong_configurations_are_refused(config: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        read(config)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (
            '{"partitions": 2, microbatches: 4}',
            "marked >>> in '{\"partitions\": 2,  >>> microbatches: 4}'",
        ),
        ("partitions=2", "is not valid JSON"),
        ("[1]", "SM_HP_MP_PARAMETERS = '[1]' is not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"partitions": 2, "pipeline_parallel_degree": 4}', "SM_HP_MP_PARAMETERS has partitions = 2 and"),
        ('{"partitions": ' + "9" * 5000 + "}", "The number of partitions must be a positive integer."),
    ],
)
def test_wrong_variables_are_refused(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        read({}, variable)
    assert text in str(caught.value)
