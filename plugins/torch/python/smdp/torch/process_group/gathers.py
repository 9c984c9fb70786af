"""Collectives that move data without reducing it: broadcast, all_gather, gather, scatter, all_to_all."""

from __future__ import annotations

from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import Work
from torch.distributed.distributed_c10d import (
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)

from smdp.torch.process_group._calls import (
    Calls,
    check_paired,
    pointers,
    single,
    split_counts,
    split_pointers,
)
from smdp.torch.process_group.tensors import Staging, common_dtype, dtype_code

_BROADCAST = BroadcastOptions()
_ALL_GATHER = AllgatherOptions()
_GATHER = GatherOptions()
_SCATTER = ScatterOptions()
_ALL_TO_ALL = AllToAllOptions()


class Gathers(Calls):
    """The collectives of the process group that move data without reducing it."""

    def broadcast(self, tensors: list[Tensor], opts: BroadcastOptions = _BROADCAST) -> Work:
        """Sends the root's tensor to all ranks."""
        tensor = single(tensors, "broadcast")
        dtype = dtype_code(tensor.dtype)
        root = opts.rootRank
        staging = Staging("broadcast")
        host = staging.read(tensor) if root == self._rank else staging.write(tensor)
        staging.ready()
        self._sequence += 1
        handle = self._group.broadcast(
            host.data_ptr(), host.shape, dtype, root, self._seconds(opts), opts.asyncOp
        )
        return self._end((handle,), tensors, staging, host)

    def allgather(
        self,
        output_tensors: list[list[Tensor]],
        input_tensors: list[Tensor],
        opts: AllgatherOptions = _ALL_GATHER,
    ) -> Work:
        """Gathers the tensors of all ranks on every rank. Sizes may differ between ranks."""
        source = single(input_tensors, "all_gather")
        if len(output_tensors) != 1:
            raise ValueError(f"all_gather takes one list of outputs, but got {len(output_tensors)}")
        outputs = output_tensors[0]
        self._check_gathered(outputs, source, "all_gather")
        dtype = common_dtype([source, *outputs])
        staging = Staging("all_gather")
        targets = [staging.write(output) for output in outputs]
        host = _apart(staging.read(source), targets, self._rank)
        arrival = self._arrival(staging, (host, targets), opts.asyncOp)
        self._sequence += 1
        handle = self._group.all_gather(
            host.data_ptr(),
            host.numel(),
            [target.data_ptr() for target in targets],
            [target.numel() for target in targets],
            dtype,
            self._seconds(opts),
            opts.asyncOp,
            [output.shape for output in outputs],
            arrival,
        )
        return self._end((handle,), outputs, staging, (host, targets))

    def allgather_coalesced(
        self,
        output_lists: list[list[Tensor]],
        input_list: list[Tensor],
        opts: AllgatherOptions = _ALL_GATHER,
    ) -> Work:
        """Gathers several tensors. `output_lists` has one list of outputs for each rank."""
        if len(output_lists) != self._size:
            raise ValueError(
                f"all_gather_coalesced needs one list per rank, {self._size} in total, but got"
                f" {len(output_lists)}"
            )
        for rank, tensors in enumerate(output_lists):
            if len(tensors) != len(input_list):
                raise ValueError(
                    f"all_gather_coalesced: the list for rank {rank} has {len(tensors)} outputs, but needs"
                    f" one for each of the {len(input_list)} inputs"
                )
        seconds = self._seconds(opts)
        staging = Staging("all_gather_coalesced")
        calls = []
        for index, source in enumerate(input_list):
            outputs = [tensors[index] for tensors in output_lists]
            self._check_gathered(outputs, source, "all_gather_coalesced")
            dtype = common_dtype([source, *outputs])
            shapes = [output.shape for output in outputs]
            targets = [staging.write(output) for output in outputs]
            calls.append((_apart(staging.read(source), targets, self._rank), targets, dtype, shapes))
        self._check_coalesced("all_gather_coalesced", [((host,), targets) for host, targets, _, _ in calls])
        arrival = self._arrival(staging, calls, opts.asyncOp)
        self._sequence += 1
        handles = [
            self._group.all_gather(
                host.data_ptr(),
                host.numel(),
                [target.data_ptr() for target in targets],
                [target.numel() for target in targets],
                dtype,
                seconds,
                True,
                shapes,
                arrival,
            )
            for host, targets, dtype, shapes in calls
        ]
        results = [tensor for tensors in output_lists for tensor in tensors]
        return self._end_coalesced(handles, results, staging, calls, opts.asyncOp)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: AllgatherOptions = _ALL_GATHER) -> Work:
        """Gathers the tensors of all ranks into one tensor on every rank, in rank order."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: AllgatherOptions = _ALL_GATHER
    ) -> Work:
        """Performs `all_gather_single` for several tensors."""
        seconds = self._seconds(opts)
        is_async = opts.asyncOp
        start_async = is_async or len(outputs) > 1
        staging = Staging("all_gather")
        hosts = []
        check_paired(outputs, inputs, "all_gather")
        for output, tensor in zip(outputs, inputs, strict=True):
            dtype = common_dtype((output, tensor))
            if output.numel() != tensor.numel() * self._size:
                raise ValueError(
                    f"all_gather: the output has {output.numel()} elements, but needs"
                    f" {tensor.numel()} x {self._size} ranks = {tensor.numel() * self._size}"
                )
            host, target = staging.read(tensor), staging.write(output)
            if _overlap(host, target):
                host = _apart(host, list(target.view(-1).chunk(self._size)), self._rank)
            hosts.append((host, target, dtype, tensor.shape))
        if len(hosts) > 1:
            used = [((read,), write.view(-1).chunk(self._size)) for read, write, _, _ in hosts]
            self._check_coalesced("all_gather", used)
        arrival = self._arrival(staging, hosts, is_async)
        self._sequence += 1
        handles = [
            self._group.all_gather(
                source.data_ptr(),
                source.numel(),
                pointers(target, self._size),
                [source.numel()] * self._size,
                dtype,
                seconds,
                start_async,
                [shape],
                arrival,
            )
            for source, target, dtype, shape in hosts
        ]
        if not start_async:
            return self._end(handles, outputs, staging)
        return self._end_coalesced(handles, outputs, staging, hosts, is_async)

    # The names of these methods before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: GatherOptions = _GATHER
    ) -> Work:
        """Gathers the tensors of all ranks on the root. Sizes may differ between ranks."""
        source = single(input_tensors, "gather")
        root = opts.rootRank
        outputs: list[Tensor] = []
        if root == self._rank:
            if len(output_tensors) != 1:
                raise ValueError(
                    f"gather takes one list of outputs on the root, but got {len(output_tensors)}"
                )
            outputs = output_tensors[0]
            self._check_gathered(outputs, source, "gather")
        dtype = common_dtype([source, *outputs])
        staging = Staging("gather")
        targets = [staging.write(output) for output in outputs]
        host = _apart(staging.read(source), targets, self._rank)
        staging.ready()
        self._sequence += 1
        handle = self._group.gather(
            host.data_ptr(),
            host.numel(),
            [target.data_ptr() for target in targets],
            [target.numel() for target in targets],
            dtype,
            root,
            self._seconds(opts),
            opts.asyncOp,
            [source.shape],
        )
        return self._end((handle,), outputs, staging, (host, targets))

    def scatter(
        self,
        output_tensors: list[Tensor],
        input_tensors: list[list[Tensor]],
        opts: ScatterOptions = _SCATTER,
    ) -> Work:
        """Sends each rank its tensor from the root's list. Sizes may differ between ranks."""
        output = single(output_tensors, "scatter")
        root = opts.rootRank
        inputs: list[Tensor] = []
        if root == self._rank:
            if len(input_tensors) != 1:
                raise ValueError(
                    f"scatter takes one list of inputs on the root, but got {len(input_tensors)}"
                )
            inputs = input_tensors[0]
            self._check_list(inputs, "the input")
        dtype = common_dtype([output, *inputs])
        staging = Staging("scatter")
        target = staging.write(output)
        hosts = [staging.read(tensor) for tensor in inputs]
        hosts = [
            host if rank == self._rank or not _overlap(host, target) else host.clone()
            for rank, host in enumerate(hosts)
        ]
        staging.ready()
        self._sequence += 1
        handle = self._group.scatter(
            [host.data_ptr() for host in hosts],
            [host.numel() for host in hosts],
            target.data_ptr(),
            target.numel(),
            dtype,
            root,
            self._seconds(opts),
            opts.asyncOp,
            [output.shape],
        )
        return self._end((handle,), output_tensors, staging, (hosts, target))

    def alltoall(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: AllToAllOptions = _ALL_TO_ALL
    ) -> Work:
        """Exchanges one tensor with every rank."""
        self._check_list(output_tensors, "the output")
        self._check_list(input_tensors, "the input")
        dtype = common_dtype([*input_tensors, *output_tensors])
        shapes = {tensor.shape for tensor in (*input_tensors, *output_tensors)}
        staging = Staging("all_to_all")
        hosts = [staging.read(tensor) for tensor in input_tensors]
        targets = [staging.write(tensor) for tensor in output_tensors]
        staging.ready()
        self._sequence += 1
        handle = self._group.all_to_all(
            [host.data_ptr() for host in hosts],
            [host.numel() for host in hosts],
            [target.data_ptr() for target in targets],
            [target.numel() for target in targets],
            dtype,
            self._seconds(opts),
            opts.asyncOp,
            # Blocks may differ between ranks. Ranks compare shapes only if all blocks are alike here.
            [tensor.shape for tensor in input_tensors] if len(shapes) == 1 else [],
        )
        return self._end((handle,), output_tensors, staging, (hosts, targets))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: AllToAllOptions = _ALL_TO_ALL,
    ) -> Work:
        """Exchanges rows of one tensor with every rank. Without split sizes the parts are equal."""
        dtype = common_dtype((input, output))
        out_counts = split_counts(output, output_split_sizes, self._size, "output")
        in_counts = split_counts(input, input_split_sizes, self._size, "input")
        staging = Staging("all_to_all_single")
        source, target = staging.read(input), staging.write(output)
        staging.ready()
        self._sequence += 1
        handle = self._group.all_to_all(
            split_pointers(source, in_counts),
            in_counts,
            split_pointers(target, out_counts),
            out_counts,
            dtype,
            self._seconds(opts),
            opts.asyncOp,
            [] if input_split_sizes or output_split_sizes else [input.shape],
        )
        return self._end((handle,), [output], staging, (source, target))

    alltoall_base = all_to_all_single  # the name before torch 2.13

    def _check_gathered(self, outputs: list[Tensor], source: Tensor, call: str) -> None:
        self._check_list(outputs, "the output")
        own = outputs[self._rank].numel()
        if own != source.numel():
            raise ValueError(
                f"{call}: this rank sends {source.numel()} elements, but its output {self._rank} has {own}"
            )


def _apart(source: Tensor, outputs: list[Tensor], own: int) -> Tensor:
    """Returns a copy of an input that overlaps another rank's output, as torch allows, else the input."""
    is_apart = not any(rank != own and _overlap(source, output) for rank, output in enumerate(outputs))
    return source if is_apart else source.clone()


def _overlap(one: Tensor, other: Tensor) -> bool:
    begin, first = one.data_ptr(), other.data_ptr()
    return bool(first < begin + one.nbytes and begin < first + other.nbytes)
