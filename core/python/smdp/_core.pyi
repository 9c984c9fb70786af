"""The C++ core of smdp. Private: use the package smdp."""

from collections.abc import Mapping, Sequence

from typing_extensions import CapsuleType


def address_of(array_struct: CapsuleType) -> int: ...

class Store:
    """Key-value store through which the ranks of a group find each other."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout: float) -> bytes:
        """Waits at most `timeout` seconds for the key and returns its value."""

    def check(self, key: str) -> bool: ...

class TcpStore(Store):
    @property
    def port(self) -> int: ...

def tcp_store(host: str, port: int, is_server: bool, secret: bytes, timeout: float) -> TcpStore:
    """
    Returns a store over TCP, which rank 0 serves (port 0 takes a free port).
    """

def memory_store() -> Store:
    """Returns a store for ranks that are threads of this process."""

def prefix_store(prefix: str, store: Store) -> Store: ...

def python_store(store: object) -> Store:
    """Wraps an object with torch's store interface: set, get, check."""

class Handle:
    """An operation in flight. Its buffers must live until it is done."""

    def wait(self, timeout: float | None = None) -> None:
        """
        Blocks until the operation is done and raises its error, if any. Raises TimeoutError after `timeout` seconds.
        """

    def done(self) -> bool: ...

    def error(self) -> Exception | None: ...

    def source(self) -> int: ...

    def notify(self, token: int) -> None: ...

def next_completion(timeout: float) -> int | None:
    """
    Returns the next token of an ended operation (see Handle.notify), or None after `timeout` seconds.
    """

class Arrival:
    """Marks the moment at which the input of a queued operation is complete."""

    def __init__(self) -> None: ...

    def arrive(self) -> None:
        """Reports that the values are in place. Later calls do nothing."""

class SparseSum:
    """
    This rank's rows of a sparse sum, and then the result. Buffers are passed as addresses.
    """

    def __init__(self, shape: Sequence[int], sparse_dims: int, dtype: int, indices_ptr: int, values_ptr: int, count: int, is_coalesced: bool) -> None: ...

    @staticmethod
    def of_dense(shape: Sequence[int], sparse_dims: int, dtype: int, values_ptr: int) -> SparseSum: ...

    @property
    def is_dense(self) -> bool: ...

    @property
    def count(self) -> int: ...

    def write(self, indices_ptr: int, values_ptr: int) -> None: ...

def set_call_name(name: str) -> None: ...

def call_name() -> str: ...

class Group:
    """A set of ranks that communicate. Buffers are passed as addresses."""

    def __init__(self, store: Store, rank: int, size: int, name: str, timeout: float, options: Mapping[str, str], parent: Group | None = None, ranks: Sequence[int] = []) -> None: ...

    @property
    def id(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def tag(self) -> str: ...

    def world_rank(self, rank: int) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    @property
    def host_index(self) -> int: ...

    @property
    def hosts(self) -> list[list[int]]: ...

    @property
    def host_names(self) -> list[str]: ...

    def split(self, color: int, key: int, name: str) -> Group: ...

    def shutdown(self, reason: str = '') -> None: ...

    def explain(self, bytes: int) -> str: ...

    def abort(self, reason: str) -> None: ...

    def error(self) -> Exception | None: ...

    def all_reduce(self, in_ptr: int, out_ptr: int, shape: Sequence[int], dtype: int, op: int, factor: float, timeout: float, async_op: bool, arrival: Arrival | None = None) -> Handle: ...

    def all_reduce_sparse(self, sum: SparseSum, op: int, factor: float, timeout: float, async_op: bool) -> Handle: ...

    def reduce(self, in_ptr: int, out_ptr: int, shape: Sequence[int], dtype: int, op: int, factor: float, root: int, timeout: float, async_op: bool) -> Handle: ...

    def reduce_scatter(self, in_ptrs: Sequence[int], counts: Sequence[int], out_ptr: int, dtype: int, op: int, factor: float, timeout: float, async_op: bool, shapes: Sequence[Sequence[int]] = [], arrival: Arrival | None = None) -> Handle: ...

    def broadcast(self, ptr: int, shape: Sequence[int], dtype: int, root: int, timeout: float, async_op: bool) -> Handle: ...

    def all_gather(self, in_ptr: int, in_count: int, out_ptrs: Sequence[int], counts: Sequence[int], dtype: int, timeout: float, async_op: bool, shapes: Sequence[Sequence[int]] = [], arrival: Arrival | None = None) -> Handle: ...

    def all_to_all(self, in_ptrs: Sequence[int], in_counts: Sequence[int], out_ptrs: Sequence[int], out_counts: Sequence[int], dtype: int, timeout: float, async_op: bool, shapes: Sequence[Sequence[int]] = []) -> Handle: ...

    def gather(self, in_ptr: int, in_count: int, out_ptrs: Sequence[int], counts: Sequence[int], dtype: int, root: int, timeout: float, async_op: bool, shapes: Sequence[Sequence[int]] = []) -> Handle: ...

    def scatter(self, in_ptrs: Sequence[int], counts: Sequence[int], out_ptr: int, out_count: int, dtype: int, root: int, timeout: float, async_op: bool, shapes: Sequence[Sequence[int]] = []) -> Handle: ...

    def barrier(self, timeout: float, async_op: bool) -> Handle: ...

    def send(self, ptr: int, count: int, dtype: int, dst: int, tag: int, timeout: float, async_op: bool) -> Handle: ...

    def offer(self, ptr: int, count: int, dtype: int, dst: int, tag: int) -> Handle: ...

    def refuse(self, src: int, tag: int) -> None: ...

    def push_offers(self) -> None: ...

    def recv(self, ptr: int, count: int, dtype: int, src: int, tag: int, timeout: float, async_op: bool) -> Handle | int: ...

def threads_inside() -> int:
    """Returns the number of threads in calls that released the GIL."""

def end() -> None:
    """
    Makes such calls of all other threads fail from now on. Called when the program ends.
    """

def shutdown_all(reason: str = '') -> None: ...

class HostMemory:
    """Memory that exists once per host. Making it is collective."""

    def __init__(self, group: Group, bytes: int) -> None: ...

    @property
    def data(self) -> int: ...

    @property
    def size(self) -> int: ...

    def await_host(self) -> None:
        """Blocks until all ranks of this host have called it."""

    def abort(self, reason: str) -> None:
        """Ends `await_host()` on all ranks of this host with this reason."""

def raise_open_files_limit() -> None:
    """
    Raises the soft limit of open files to the hard limit, at most to 65536.
    """

def describe_shortage(call: str, purpose: str, error: int, bytes: int = 0) -> str:
    """
    Explains which limit a system call with this errno reached, and how to raise it.
    """

class Meeting:
    """
    Announces that this thread waits for the ranks of a new group; see meeting.h.
    """

    def __init__(self, group: str, size: int, parent: Group | None = None, ranks: Sequence[int] = []) -> None:
        """
        `parent` and `ranks` are the group that the ranks belong to, if known; see Group::watch().
        """

    def __enter__(self) -> Meeting: ...

    def __exit__(self, *args: object) -> None: ...

    def check(self, has_failed: bool = False) -> None:
        """Raises MismatchError or PeerLostError if the ranks can never all join."""

class ShardedBuffer:
    """A fusion buffer of which each rank owns a part."""

    @property
    def dtype(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def is_alone(self) -> bool: ...

    @property
    def members(self) -> list[tuple[int, int, int]]:
        """Index of each gradient, its offset, and its number of elements."""

    @property
    def owned(self) -> list[tuple[int, int]]:
        """First element and end of each range that this rank owns."""

class ParameterGather:
    """Parameters on their way from the owners of shards to all ranks."""

    def ready(self, number: int) -> None: ...

    def wait_for(self, number: int) -> None: ...

    def wait(self) -> None: ...

    def is_there(self, number: int) -> bool: ...

class GradientReducer:
    """Averages gradients over a group while the backward pass runs."""

    def __init__(self, group: Group, gradients: Sequence[tuple[str, int, int, str]], compression: str = 'none', buffer_bytes: int = 26214400, factor: float = 0.0, topk_ratio: float = 0.01, topk_momentum: float = 0.0, compares_names: bool = True, purpose: str = '', replaced: Sequence[str] = [], shards: str = 'none', whole: Sequence[int] = []) -> None:
        """
        Collective; see gradient_reducer.h. `gradients` lists (name, elements, dtype, shape as text); `whole` the indices of those that must not be cut.
        """

    def ready(self, index: int, data: int, device: int | None = None, event: int = 0, is_used: bool = True) -> None:
        """
        Hands over a gradient. On a CUDA device, it is complete after `event`, a cudaEvent_t; 0: now.
        """

    def sum_into(self, index: int, own: int) -> None:
        """
        Lets the means that this rank owns of a gradient go to this memory, range after range. Call it before `ready()`, for a gradient that is alone in its buffer.
        """

    def finish(self) -> None: ...

    def wait(self, device: int | None = None, stream: int = 0) -> None:
        """
        Blocks until all means are written back. With `device`, its `stream`, a cudaStream_t, waits for copies to devices instead.
        """

    def wait_for(self, index: int, device: int | None = None, stream: int = 0) -> None: ...

    def or_over_ranks(self, flags: int, count: int) -> None: ...

    def all_reduce_sparse(self, index: int, sum: SparseSum) -> Handle: ...

    def is_used(self, index: int) -> bool: ...

    def read(self, index: int, out: int) -> None: ...

    def rescale(self, factor: float) -> None: ...

    def copy_kept(self, index: int, part: int, out: int) -> bool: ...

    def set_kept(self, index: int, part: int, values: int) -> None: ...

    @property
    def sharded_buffers(self) -> list[ShardedBuffer]: ...

    def means(self, number: int) -> int:
        """Returns the address of a buffer's means, valid until the next step."""

    def has_means(self, number: int) -> bool:
        """
        Returns whether this rank has the means that it owns of a buffer. With int8 and topk, only after `wait()`.
        """

    def await_means(self, number: int) -> bool:
        """
        Waits for a buffer in the middle of a step. Returns False if it is not on its way yet, and with int8 and topk.
        """

    def gather(self, data: Sequence[int], is_once_per_host: bool = False) -> ParameterGather:
        """
        Begins to send what each rank owns of `data`, by buffer the address of its memory, to all ranks. is_once_per_host: the ranks of a host have the same memory.
        """

    def abort(self, reason: str) -> None: ...

    @property
    def group_name(self) -> str: ...

    def speed(self) -> tuple[float, float, float]:
        """
        What was measured before the first step, the same on all ranks: seconds of the smallest all_reduce, bytes per second of a large one, bytes per second that a rank reads when it adds.
        """

    def explain(self) -> str: ...

    @property
    def steps(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def exposed_seconds(self) -> float: ...

    @property
    def last_exposed_seconds(self) -> float: ...

class GradientCompressor:
    """Averages a framework's own fusion buffers, with compression."""

    def __init__(self, compression: str, topk_ratio: float = 0.01, topk_momentum: float = 0.0) -> None: ...

    def check_same(self, group: Group) -> None: ...

    def all_reduce(self, group: Group, key: int, data: int, count: int, dtype: int, label: str, arrival: Arrival | None = None) -> Handle: ...

    def end_step(self, counts: bool) -> None: ...

    def rescale(self, factor: float) -> None: ...

class GradientSteps:
    """Drives a GradientReducer for ops of a graph, which find it by its id."""

    def __init__(self, group: Group, gradients: Sequence[tuple[str, int, int, str]], compression: str = 'none', buffer_bytes: int = 26214400, factor: float = 0.0, purpose: str = '', replaced: Sequence[str] = []) -> None:
        """
        Collective; see gradient_steps.h. `gradients` lists (name, elements, dtype, shape as text).
        """

    @property
    def id(self) -> int: ...

    @property
    def group_name(self) -> str: ...

    def explain(self) -> str: ...

    def abort(self, reason: str) -> None: ...

def operation_counts() -> list[tuple[str, str, int, int, float]]:
    """
    Returns (operation, algorithm, calls, bytes, seconds) over all groups of this process.
    """

class StepCount:
    """Steps of all gradient reducers of this process."""

    @property
    def steps(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def exposed_seconds(self) -> float: ...

    @property
    def last_exposed_seconds(self) -> float: ...

    @property
    def input_seconds(self) -> float: ...

    @property
    def rank_seconds(self) -> list[float]: ...

    @property
    def slowest(self) -> list[int]: ...

def step_count() -> StepCount: ...

def seconds_computed(now_ns: int) -> float:
    """
    Returns the seconds since the last call, minus exposed communication. Takes a time of time.monotonic_ns().
    """

def count_reduced_step(group: str, number: int, bytes: int, last_end_ns: int, begin_ns: int, end_ns: int, rank_seconds: Sequence[float]) -> None:
    """
    Counts a step of a framework's own reducer; see observability.h. Takes times of time.monotonic_ns().
    """

def count_input(begin_ns: int, end_ns: int) -> None:
    """Counts a wait for input data. Takes times of time.monotonic_ns()."""

def trace_is_on() -> bool: ...

def trace_set_limit(bytes: int) -> None: ...

def trace_span(track: str, category: str, name: str, begin_ns: int, end_ns: int) -> None: ...

class DdpPrediction:
    """The prediction of simulate_ddp() for a step."""

    @property
    def step_seconds(self) -> float: ...

    @property
    def compute_seconds(self) -> float: ...

    @property
    def communication_seconds(self) -> float: ...

    @property
    def exposed_seconds(self) -> float: ...

    @property
    def efficiency(self) -> float: ...

    @property
    def buffers(self) -> int: ...

def simulate_ddp(layers: Sequence[tuple[float, float, Sequence[int]]], *, hosts: int, ranks_per_host: int, bandwidth: float, hop_seconds: float = 3e-05, compression: str = 'none', topk_ratio: float = 0.01, buffer_bytes: int = 26214400, algorithm: str = 'auto') -> DdpPrediction:
    """
    Predicts a step of data-parallel training. `layers` lists (forward seconds, backward seconds, elements of each parameter).
    """

def transfer_seconds(bytes: float, *, latency: float, bandwidth: float) -> float:
    """Returns the seconds of one message over a link."""

def all_reduce_seconds(bytes: float, ranks: int, *, latency: float, bandwidth: float) -> float:
    """
    Returns the seconds of an all_reduce that sends the minimum number of bytes.
    """

class Layers:
    """A run of equal transformer layers; smdp/memory.h explains its fields."""

    def __init__(self, *, count: int, hidden: int, heads: int, key_value_heads: int, head_size: int, ffn: int, is_gated: bool = False, is_relu: bool = False, has_cross_attention: bool = False, has_query_key_value_bias: bool = False, has_output_bias: bool = False, has_mlp_bias: bool = False, has_dropout: bool = False, norms: int = 2, norm_width: int = 2, has_unfused_norms: bool = False, has_fp32_softmax: bool = False, has_query_key_norm: bool = False, experts: int = 0, experts_per_token: int = 0, shared_ffn: int = 0, extra: int = 0) -> None: ...

    @property
    def count(self) -> int: ...

    @property
    def hidden(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def key_value_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...

    @property
    def ffn(self) -> int: ...

    @property
    def is_gated(self) -> bool: ...

    @property
    def is_relu(self) -> bool: ...

    @property
    def has_cross_attention(self) -> bool: ...

    @property
    def has_query_key_value_bias(self) -> bool: ...

    @property
    def has_output_bias(self) -> bool: ...

    @property
    def has_mlp_bias(self) -> bool: ...

    @property
    def has_dropout(self) -> bool: ...

    @property
    def norms(self) -> int: ...

    @property
    def norm_width(self) -> int: ...

    @property
    def has_unfused_norms(self) -> bool: ...

    @property
    def has_fp32_softmax(self) -> bool: ...

    @property
    def has_query_key_norm(self) -> bool: ...

    @property
    def experts(self) -> int: ...

    @property
    def experts_per_token(self) -> int: ...

    @property
    def shared_ffn(self) -> int: ...

    @property
    def extra(self) -> int: ...

class Architecture:
    """
    A transformer: embedding, layers and head; smdp/memory.h explains its fields.
    """

    def __init__(self, *, name: str = '', hidden: int, vocabulary: int = 0, positions: int = 0, embedding_extra: int = 0, has_embedding_dropout: bool = False, layers: Sequence[Layers], head_extra: int = 0, outputs: int = 0, is_tied: bool = False, sequence: int = 0) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def hidden(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def positions(self) -> int: ...

    @property
    def embedding_extra(self) -> int: ...

    @property
    def has_embedding_dropout(self) -> bool: ...

    @property
    def layers(self) -> list[Layers]: ...

    @property
    def head_extra(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    @property
    def is_tied(self) -> bool: ...

    @property
    def sequence(self) -> int: ...

def parameters(architecture: Architecture) -> float:
    """Returns the number of elements of all parameters."""

def layer_activations(layer: Layers, setting: MemorySetting) -> float:
    """Returns the bytes of one microbatch that one layer of the run keeps."""

class MemorySetting:
    """How a model is trained; smdp/memory.h explains its fields."""

    def __init__(self, *, microbatch_size: int = 1, microbatches: int = 1, sequence: int = 0, decoder_sequence: int = 0, pipeline: int = 1, virtual_stages: int = 1, tensor: int = 1, data: int = 1, sequence_parallel: bool = False, schedule: str = '1f1b', active_microbatches: int = 0, precision: str = 'bf16', sharding: str = 'none', sharding_degree: int = 0, checkpointing: str = 'none', flash_attention: bool = False, offload_activations: bool = False, activation_loading_horizon: int = 4, offload_optimizer: bool = False, bucket_bytes: int = 26214400, stage_sizes: Sequence[int] = [], in_flight: Sequence[float] = []) -> None: ...

    @property
    def microbatch_size(self) -> int: ...

    @property
    def microbatches(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def decoder_sequence(self) -> int: ...

    @property
    def pipeline(self) -> int: ...

    @property
    def virtual_stages(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    @property
    def data(self) -> int: ...

    @property
    def sequence_parallel(self) -> bool: ...

    @property
    def schedule(self) -> str: ...

    @property
    def active_microbatches(self) -> int: ...

    @property
    def precision(self) -> str: ...

    @property
    def sharding(self) -> str: ...

    @property
    def sharding_degree(self) -> int: ...

    @property
    def checkpointing(self) -> str: ...

    @property
    def flash_attention(self) -> bool: ...

    @property
    def offload_activations(self) -> bool: ...

    @property
    def activation_loading_horizon(self) -> int: ...

    @property
    def offload_optimizer(self) -> bool: ...

    @property
    def bucket_bytes(self) -> int: ...

    @property
    def stage_sizes(self) -> list[int]: ...

    @property
    def in_flight(self) -> list[float]: ...

class StageMemory:
    """Bytes at the peak of one rank of a stage."""

    @property
    def parameters(self) -> float: ...

    @property
    def gradients(self) -> float: ...

    @property
    def optimizer(self) -> float: ...

    @property
    def activations(self) -> float: ...

    @property
    def embedding(self) -> float: ...

    @property
    def logits(self) -> float: ...

    @property
    def transients(self) -> float: ...

    @property
    def buckets(self) -> float: ...

    @property
    def unsharded(self) -> float: ...

    @property
    def host(self) -> float: ...

    @property
    def in_flight(self) -> float: ...

    @property
    def total(self) -> float: ...

class MemoryEstimate:
    """The memory of every pipeline rank, as estimate_memory() returns it."""

    @property
    def stages(self) -> list[StageMemory]: ...

    @property
    def peak(self) -> float: ...

    @property
    def peak_stage(self) -> int: ...

    def fits(self, device_memory: float, *, margin: float = 0.8) -> bool:
        """Returns whether the peak is at most `margin` times the device's bytes."""

def estimate_memory(architecture: Architecture, setting: MemorySetting) -> MemoryEstimate: ...

def estimate_trace_memory(units: Sequence[tuple[float, float, float]], tied: Sequence[tuple[float, Sequence[int]]], microbatch_size: int, setting: MemorySetting) -> MemoryEstimate:
    """
    `units` lists (elements of parameters, bytes of activations, bytes of the cut behind it), `tied` lists (elements, units).
    """

class StateBytes:
    """Bytes per parameter of the states that a rank holds."""

    @property
    def parameters(self) -> float: ...

    @property
    def gradients(self) -> float: ...

    @property
    def optimizer(self) -> float: ...

    @property
    def copy(self) -> float: ...

    @property
    def wire(self) -> float: ...

    @property
    def sum(self) -> float: ...

def state_bytes(precision: str, sharding: str = 'none', degree: int = 1) -> StateBytes: ...

def even_stages(layers: int, stages: int) -> list[int]:
    """
    Returns the layers per stage, as even as possible; the middle stages get the remainder.
    """

def in_flight(schedule: str, *, pipeline: int, rank: int, microbatches: int, virtual_stages: int = 1, active_microbatches: int = 0) -> float:
    """
    Returns the number of microbatches whose activations a pipeline rank holds at its peak.
    """

class ShardedParameter:
    """
    A tensor viewed as [outer, length, inner]; smdp/sharding.h explains its fields.
    """

    def __init__(self, *, outer: int = 1, length: int, inner: int = 1, element_size: int = 4, is_split: bool = False) -> None: ...

    @property
    def outer(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def inner(self) -> int: ...

    @property
    def element_size(self) -> int: ...

    @property
    def is_split(self) -> bool: ...

class Piece:
    """
    Bytes [begin, end) of a parameter, and their offset in the owner's shard.
    """

    @property
    def parameter(self) -> int: ...

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def offset(self) -> int: ...

class Owner:
    """A piece of a parameter, and the rank that owns it."""

    @property
    def rank(self) -> int: ...

    @property
    def piece(self) -> Piece: ...

class Move:
    """Rows of bytes that move from one rank's shard to another's, or stay."""

    @property
    def source(self) -> int: ...

    @property
    def source_offset(self) -> int: ...

    @property
    def source_stride(self) -> int: ...

    @property
    def target(self) -> int: ...

    @property
    def target_offset(self) -> int: ...

    @property
    def target_stride(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...

class ParameterShards:
    """Equal shards of a list of parameters stored one after the other."""

    def __init__(self, parameters: Sequence[ShardedParameter], ranks: int) -> None: ...

    def bytes(self, rank: int) -> int: ...

    def pieces(self, rank: int) -> list[Piece]:
        """Returns the pieces that a rank owns, in the order of its shard."""

    def owners(self, parameter: int) -> list[Owner]:
        """
        Returns the owners of a parameter's pieces, in the order of the parameter.
        """

class ShardingLayout:
    """How ranks share parameters; smdp/sharding.h explains its fields."""

    def __init__(self, *, pipeline: int, tensor: int, data: int, stages: Sequence[Sequence[int]], ranks: Sequence[int] = []) -> None: ...

    @property
    def pipeline(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    @property
    def data(self) -> int: ...

    @property
    def stages(self) -> list[list[int]]: ...

    @property
    def ranks(self) -> list[int]: ...

def holdings(parameters: Sequence[ShardedParameter], layout: ShardingLayout, rank: int) -> list[Piece]:
    """
    Returns the pieces of whole parameters that a rank holds, in the order of its shard.
    """

def shard_bytes(parameters: Sequence[ShardedParameter], layout: ShardingLayout, rank: int) -> int: ...

def reshard(parameters: Sequence[ShardedParameter], source: ShardingLayout, target: ShardingLayout) -> list[Move]:
    """
    Returns the moves that give the ranks of `target` what they need from those of `source`, each byte once.
    """

class PipelineSchedule:
    """Rows of actions; smdp.pipeline.Schedule wraps it."""

    @property
    def name(self) -> str: ...

    @property
    def microbatches(self) -> int: ...

    @property
    def forward_only(self) -> bool: ...

    @property
    def rank_of(self) -> list[int]: ...

    @property
    def skip_edges(self) -> list[tuple[int, int]]: ...

    @property
    def tied(self) -> list[list[int]]: ...

    @property
    def ranks(self) -> int: ...

    @property
    def stages(self) -> int: ...

    def rows(self) -> list[list[str]]:
        """Returns the actions as text."""

    def with_skip_edges(self, edges: Sequence[tuple[int, int]]) -> PipelineSchedule: ...

    def __eq__(self, arg: object, /) -> bool: ...

class PipelineCosts:
    """Times and bytes per virtual stage; see costs.h."""

    def __init__(self, *, forward: Sequence[float], backward_input: Sequence[float], backward_weight: Sequence[float], activation_bytes: Sequence[float], stash_bytes: Sequence[float] = [], receive_bytes: Sequence[float] = [], hop: float = 0.0, unshard: float = 0.0, reduce_grad: float = 0.0, reduce_tied: float = 0.0, reduce_norm: float = 0.0, offload: float = 0.0, reload: float = 0.0) -> None: ...

class PipelineSimulation:
    """The result of simulate(); see simulate.h."""

    @property
    def makespan(self) -> float: ...

    @property
    def span(self) -> float: ...

    @property
    def bubble(self) -> float: ...

    @property
    def work(self) -> float: ...

    @property
    def peak_activations(self) -> list[float]: ...

    @property
    def peak_action(self) -> list[int]: ...

    def timeline(self) -> list[list[tuple[float, float]]]:
        """Returns (start, end) of every action of every row."""

    def links(self) -> list[tuple[int, int, int, float]]:
        """Returns (from rank, to rank, transfers, busy seconds) of every link."""

class PipelineViolation:
    """A violation found by verify()."""

    @property
    def check(self) -> str: ...

    @property
    def rank(self) -> int: ...

    @property
    def stage(self) -> int: ...

    @property
    def microbatch(self) -> int: ...

    @property
    def action(self) -> str: ...

    @property
    def message(self) -> str: ...

def pipeline_add_unshard_reshard(schedule: PipelineSchedule, unshard: int) -> PipelineSchedule: ...

def pipeline_add_offload(schedule: PipelineSchedule, stages: Sequence[int], offload_horizon: int) -> PipelineSchedule: ...

def pipeline_add_reduce_grad(schedule: PipelineSchedule) -> PipelineSchedule: ...

def pipeline_add_tied_reductions(schedule: PipelineSchedule, groups: Sequence[Sequence[int]]) -> PipelineSchedule: ...

def pipeline_add_reduce_norm(schedule: PipelineSchedule) -> PipelineSchedule: ...

def pipeline_add_send_recv(schedule: PipelineSchedule, payloads: Sequence[tuple[int, int, str]]) -> PipelineSchedule:
    """
    `payloads` lists (source stage, target stage, dtype and shape as text).
    """

def pipeline_to_csv(schedule: PipelineSchedule) -> str: ...

def pipeline_from_csv(text: str, microbatches: int = 0) -> PipelineSchedule: ...

def pipeline_to_json(schedule: PipelineSchedule) -> str: ...

def pipeline_from_json(text: str) -> PipelineSchedule: ...

def pipeline_gantt(schedule: PipelineSchedule, simulation: PipelineSimulation, width: int) -> str: ...

def pipeline_chrome_trace(schedule: PipelineSchedule, simulation: PipelineSimulation) -> str: ...

def pipeline_schedules() -> list[tuple[str, str, int, int, str | None, bool, bool]]:
    """
    Returns (name, description, usual virtual stages per rank, the only valid number or 0, placement or None, has I and W, takes any placement) of every schedule.
    """

def pipeline_generate(name: str, *, stages: int, microbatches: int, virtual_stages: int = 1, active_microbatches: int = 0, costs: PipelineCosts | None = None, memory_cap: float | None = None, placement: str | None = None, rank_of: Sequence[int] = []) -> PipelineSchedule: ...

def pipeline_simulate(schedule: PipelineSchedule, costs: PipelineCosts) -> PipelineSimulation: ...

def pipeline_lower_bounds(schedule: PipelineSchedule, costs: PipelineCosts) -> tuple[float, float]:
    """Returns (makespan, span) that no order of the actions can beat."""

def pipeline_verify(schedule: PipelineSchedule, *, checks: Sequence[str], transports: Sequence[str], buffers: int = 1, costs: PipelineCosts | None = None, memory_cap: float | None = None, active_microbatches: int = 0, replicas: Sequence[PipelineSchedule] = [], alternates: Sequence[PipelineSchedule] = []) -> PipelineViolation | None:
    """Returns the first violation, or None."""

class PartitionStage:
    """One stage of a partition; smdp/partition.h explains its fields."""

    @property
    def units(self) -> list[int]:
        """Indices of its units, contiguous except for SMP's algorithm."""

    @property
    def rank(self) -> int: ...

    @property
    def forward(self) -> float:
        """Seconds per microbatch."""

    @property
    def backward_input(self) -> float: ...

    @property
    def backward_weight(self) -> float: ...

    @property
    def seconds(self) -> float:
        """Sum of the three."""

    @property
    def parameter_bytes(self) -> float: ...

    @property
    def activation_bytes(self) -> float:
        """Bytes of one microbatch."""

    @property
    def memory_bytes(self) -> float:
        """
        Bytes of the states, and of the activations of the microbatches in flight.
        """

    @property
    def cut_bytes(self) -> float:
        """Bytes sent to the next stage."""

class Partition:
    """A model cut into stages; smdp/partition.h explains its fields."""

    @property
    def stages(self) -> list[PartitionStage]: ...

    @property
    def bottleneck(self) -> float:
        """Seconds of the slowest stage."""

    @property
    def step(self) -> float:
        """Seconds of a step, simulated; 0 for SMP's algorithm."""

    @property
    def bubble(self) -> float:
        """Idle fraction of all ranks' time, simulated."""

    @property
    def peak_bytes(self) -> list[float]:
        """Bytes per rank."""

    @property
    def schedule(self) -> str:
        """
        The schedule that was simulated; under a cap another one may replace auto.
        """

    @property
    def activation_cap(self) -> float:
        """Bytes of activations per rank that auto was allowed; 0: no cap."""

    @property
    def reason(self) -> str:
        """One sentence that explains the result."""

def partition_units(units: Sequence[tuple[str, float, float, float, float, float, float, int]], tied: Sequence[tuple[float, Sequence[int]]], *, ranks: int, virtual_stages: int, rank_of: Sequence[int], microbatches: int, schedule: str, active_microbatches: int, algorithm: str, memory_cap: float, state_factor: float, memory_weight: float, is_tied_together: bool, latency: float, bandwidth: float) -> Partition: ...

def kernel_name() -> str: ...

def kernels() -> list[str]: ...

def core_count() -> int: ...

def build_info() -> dict[str, str]: ...

def dtype_size(dtype: int) -> int: ...

def dtype_name(dtype: int) -> str: ...
