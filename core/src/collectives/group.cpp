// The public Group: checks arguments, then turns each call into a coroutine that the engine runs.
#include "smdp/group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "collectives/chunks.h"
#include "collectives/engine.h"
#include "collectives/hierarchical.h"
#include "collectives/local.h"
#include "collectives/overlap.h"
#include "collectives/registry.h"
#include "collectives/routes.h"
#include "collectives/sparse_all_reduce.h"
#include "collectives/watch.h"
#include "common/directory.h"
#include "common/failure.h"
#include "common/shortage.h"
#include "observability/trace.h"
#include "rendezvous/bootstrap.h"
#include "rendezvous/departure.h"
#include "rendezvous/group_view.h"
#include "smdp/error.h"
#include "smdp/meeting.h"

namespace smdp {
namespace {

constexpr int kStreamsToTry = 4;
// Beside a backward that takes the cores every wait is a switch between threads, as where ranks outnumber cores.
// Measured, see docs/benchmarks.md.
constexpr std::size_t kChunkBesideCompute = std::size_t{2} << 20;
constexpr int kMostRanksToTryStreams = 16;

const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

ConstBytes view(const ConstBuffer& buffer, DType dtype) { return {bytes(buffer.data), buffer.count * size_of(dtype)}; }
Bytes view(const Buffer& buffer, DType dtype) { return {bytes(buffer.data), buffer.count * size_of(dtype)}; }
ConstBytes as_const(Bytes block) { return {block.data, block.size}; }

template <class B>
auto views(const std::vector<B>& buffers, DType dtype) {
  std::vector<decltype(view(B{}, dtype))> all;
  for (const B& buffer : buffers) all.push_back(view(buffer, dtype));
  return all;
}

std::vector<ConstBytes> const_views(const std::vector<Buffer>& buffers, DType dtype) {
  std::vector<ConstBytes> all;
  for (const Buffer& buffer : buffers) all.push_back(as_const(view(buffer, dtype)));
  return all;
}

template <class B>
std::size_t total(const std::vector<B>& buffers, DType dtype) {
  std::size_t count = 0;
  for (const B& buffer : buffers) count += buffer.count;
  return count * size_of(dtype);
}

template <class B>
std::vector<std::uint64_t> counts_of(const std::vector<B>& buffers) {
  std::vector<std::uint64_t> counts;
  for (const B& buffer : buffers) counts.push_back(buffer.count);
  return counts;
}

void check_buffer(const char* operation, const void* data, std::size_t count) {
  if (data == nullptr && count != 0) {
    throw InvalidArgument(std::string("[smdp] ") + operation + ": a buffer of " + std::to_string(count) +
                          " elements has a null pointer.");
  }
}

void check_rank(const Members& members, const char* what, int rank) {
  if (rank >= 0 && rank < members.size) return;
  throw InvalidArgument(members.prefix() + what + " is " + std::to_string(rank) + "; allowed: 0 to " +
                        std::to_string(members.size - 1) + ".");
}

void check_source(const Members& members, int rank) {
  check_rank(members, "source", rank);
  if (rank == members.rank)
    throw InvalidArgument(members.prefix() +
                          "cannot receive from itself: source must be another rank. Copy what it has.");
}

Mailbox::Request outgoing(const char* operation, const Members& members, ConstBuffer data, DType dtype, int destination,
                          std::int64_t tag) {
  check_rank(members, "destination", destination);
  check_buffer(operation, data.data, data.count);
  if (destination == members.rank)
    throw InvalidArgument(members.prefix() +
                          "cannot send to itself: destination must be another rank. Copy what it has.");
  Mailbox::Request request{};
  request.data = const_cast<std::byte*>(bytes(data.data));
  request.size = data.count * size_of(dtype);
  request.dtype = dtype;
  request.peer = destination;
  request.tag = tag;
  return request;
}

void check_list(const Members& members, const char* what, std::size_t count) {
  if (count == static_cast<std::size_t>(members.size)) return;
  throw InvalidArgument(members.prefix() + what + " has " + std::to_string(count) +
                        " buffers; it needs one per rank, " + std::to_string(members.size) + ".");
}

void check_count(const Members& members, const std::string& what, std::size_t count, std::size_t expected) {
  if (count == expected) return;
  throw InvalidArgument(members.prefix() + what + " has " + std::to_string(count) + " elements; it needs " +
                        std::to_string(expected) + ".");
}

void check_reduction(const Members& members, const char* operation, DType dtype, ReduceOp op) {
  if (is_supported(dtype, op)) return;
  throw InvalidArgument(members.prefix() + operation + ": " + name_of(op) + " is not defined on " + name_of(dtype) +
                        ". Convert the data to a type that has it, such as " +
                        (is_supported(DType::kFloat32, op) ? "float32." : "int64."));
}

Fingerprint fingerprint(OpKind kind, DType dtype, ReduceOp op = ReduceOp::kSum, int root = -1) {
  Fingerprint print;
  print.kind = kind;
  print.dtype = dtype;
  print.op = op;
  print.root = root;
  return print;
}

// Lists of equal blocks count as one shape: of a block, or, where one tensor is divided, of that.
void add_shapes(Fingerprint& print, Shapes shapes, bool is_divided) {
  const bool is_even =
      std::all_of(shapes.begin(), shapes.end(), [&](const auto& shape) { return shape == shapes.front(); });
  if (shapes.empty()) return;
  if (!is_even) {
    print.add_shapes(shapes);
    return;
  }
  std::vector<std::int64_t>& shape = shapes.front();
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;  // nothing has no shape
  if (is_divided && shapes.size() > 1) {
    const auto blocks = static_cast<std::int64_t>(shapes.size());
    if (shape.empty()) {
      shape.push_back(blocks);
    } else {
      shape.front() *= blocks;
    }
  }
  print.add_shape(shape);
}

// All but the first extent, which may differ between ranks.
void add_open_shape(Fingerprint& print, const Shapes& shapes, std::size_t count) {
  if (shapes.empty() || count == 0) return;
  std::vector<std::int64_t> shape = shapes.front();
  if (!shape.empty()) shape.front() = 0;
  print.add_shape(shape);
}

Reduction reduction_for(DType dtype, ReduceOp op, int size) {
  return {dtype, op, op == ReduceOp::kAvg ? static_cast<std::uint32_t>(size) : 1U};
}

// A store or a connection may break before this process hears that the rank at its other end is gone.
constexpr std::chrono::seconds kNews{1};
constexpr std::chrono::milliseconds kNewsPause{20};

// Ends early where another rank waits for this one in another group, and so never comes, and where one is gone.
Connections meet(Store& store, int rank, int size, GroupOptions options) {
  const int world_rank = options.world_rank < 0 ? rank : options.world_rank;
  const Meeting meeting(options.name, size, options.obstacle, world_rank, options.purpose, options.replaced);
  options.interrupted = [asked = options.interrupted, &meeting] {
    meeting.check();
    return asked && asked();
  };
  try {
    return bootstrap(store, rank, size, options, [&options] { return shared_progress(options.threads); });
  } catch (const ShortageError&) {
    throw;
  } catch (const Error& error) {
    // What the ranks' own settings are is why others leave, and not the other way round.
    if (error.kind() == ErrorKind::kConfig || error.kind() == ErrorKind::kMismatch) throw;
    meeting.check(true);  // and not what a store makes of it
    if (!options.obstacle || (error.kind() != ErrorKind::kInternal && error.kind() != ErrorKind::kPeerLost)) throw;
    for (const auto end = Clock::now() + kNews; Clock::now() < end;) {
      std::this_thread::sleep_for(kNewsPause);
      meeting.check(true);
    }
    throw;
  }
}

}  // namespace

class Group::Impl {
 public:
  Impl(std::shared_ptr<Store> store_, int rank, int size, const GroupOptions& options) : store(std::move(store_)) {
    if (size < 1 || rank < 0 || rank >= size) {
      throw ConfigError("[smdp] rank is " + std::to_string(rank) + " and world size " + std::to_string(size) +
                        "; allowed: rank from 0 to world size - 1.");
    }
    Connections connections = meet(*store, rank, size, options);
    try {
      engine = std::make_shared<Engine>(std::move(connections), options);
    } catch (const ShortageError& error) {
      // Who is connected has heard of it. Others may be on their way, and rank 0 stays for them.
      GroupView view(store, options.name, {});
      view.fail(without_tag(error.what()));
      if (rank == 0) await_departures(view, all_but_first(size), options.interrupted);
      throw;
    }
    register_engine(engine);
    try {
      if (rank == 0) part(options.name);
      if (!options.trace.empty()) open_trace(options);
    } catch (const std::exception& error) {
      engine->shutdown(without_tag(error.what()));
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (engine) engine->shutdown("");
  }
  const Members& members() const { return engine->members(); }

  void open_trace(const GroupOptions& options) const {
    const Members& all = members();
    trace::open(options.trace, options.world_rank < 0 ? all.rank : options.world_rank,
                options.world_size < 0 ? all.size : options.world_size,
                all.host_names[static_cast<std::size_t>(all.rank)]);
  }

  // Rank 0 waits for the others' last look at these keys.
  void part(const std::string& name) const {
    GroupView view(store, name, {});
    if (members().rank != 0) return announce_departure(view, members().rank);
    bool is_told = false;
    await_departures(view, all_but_first(members().size), engine->options().interrupted, [&](int rank) {
      if (const std::exception_ptr error = engine->error(); error && !std::exchange(is_told, true)) {
        view.fail(without_tag(Failure::of(error).text));  // who is on its way has no connection to hear of it
      }
      return engine->death_of({rank}) || engine->departure_of({rank});
    });
  }

  Handle all_gather(const Fingerprint& print, ConstBuffer in, const std::vector<Buffer>& out, const Call& call) {
    return engine->collective(
        print, total(out, print.dtype),
        [blocks = views(out, print.dtype), own = view(in, print.dtype)](Context& context) {
          return routed_all_gather(context, blocks, own);
        },
        call);
  }

  std::shared_ptr<Store> store;
  std::shared_ptr<Engine> engine;
  std::uint64_t id = 0;
  int splits = 0;  // calls of split(): part of the new group's name
};

Group::Group(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options)
    : impl_(std::make_shared<Impl>(std::move(store), rank, size, options)) {
  impl_->id = Directory<Impl>::instance().add(impl_);
}
Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::~Group() = default;

std::uint64_t Group::id() const { return impl_->id; }

std::shared_ptr<Group> Group::find(std::uint64_t id) {
  std::shared_ptr<Impl> impl = Directory<Impl>::instance().find(id);
  return impl ? std::shared_ptr<Group>(new Group(std::move(impl))) : nullptr;
}

int Group::rank() const { return impl_->members().rank; }
int Group::size() const { return impl_->members().size; }
int Group::world_rank(int rank) const { return impl_->members().world_rank(rank); }
const std::string& Group::name() const { return impl_->members().name; }
int Group::local_rank() const { return static_cast<int>(impl_->members().local_index); }
int Group::local_size() const { return static_cast<int>(impl_->members().local_ranks().size()); }
int Group::host_index() const { return static_cast<int>(impl_->members().host_index); }
const std::vector<std::vector<int>>& Group::hosts() const { return impl_->members().hosts; }

int Group::streams_to_try() const {
  const GroupOptions& options = impl_->engine->options();
  const Members& members = impl_->members();
  // Several rails need a stream each, and many ranks would want many descriptors.
  const bool is_open = options.streams == 0 && options.socket_ifname.empty();
  return is_open && members.hosts.size() > 1 && members.size <= kMostRanksToTryStreams ? kStreamsToTry : 0;
}

std::string Group::tag() const { return impl_->members().tag(); }
const std::vector<std::string>& Group::host_names() const { return impl_->members().host_names; }

Group::Handle Group::all_reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype,
                                ReduceOp op, double factor, const Call& call) {
  const Members& members = impl_->members();
  check_reduction(members, "all_reduce", dtype, op);
  Fingerprint print = fingerprint(OpKind::kAllReduce, dtype, op);
  print.set_shape(shape);
  const std::size_t count = print.count;
  check_buffer("all_reduce", in, count);
  check_buffer("all_reduce", out, count);
  const std::size_t size = count * size_of(dtype);
  check_apart(members, "all_reduce", {bytes(in), size}, {bytes(out), size});
  const Reduction reduction = reduction_for(dtype, op, members.size);
  const Planner& planner = impl_->engine->planner();
  return impl_->engine->collective(
      print, size,
      [=, &planner](Context& context) {
        return routed_all_reduce(context, bytes(in), bytes(out), count, reduction, factor, planner);
      },
      call);
}

Group::Handle Group::all_reduce_sparse(std::shared_ptr<SparseSum> sum, ReduceOp op, double factor, const Call& call) {
  const Members& members = impl_->members();
  SparseParts& parts = sum->parts();
  const SparseForm& form = parts.form;
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg && op != ReduceOp::kPremulSum) {
    throw InvalidArgument(members.prefix() + "all_reduce of a sparse tensor: " + name_of(op) +
                          " is not defined, because what a rank does not have is zero. Use SUM or AVG, or make the "
                          "tensor dense.");
  }
  check_reduction(members, "all_reduce", form.dtype, op);
  if (parts.was_given) {
    throw InvalidArgument(members.prefix() +
                          "all_reduce of a sparse tensor got a SparseSum that another one has used already. Make a new "
                          "SparseSum for each all_reduce.");
  }
  parts.was_given = true;
  if (op == ReduceOp::kPremulSum) parts.scale_own(factor);
  Fingerprint print = fingerprint(OpKind::kAllReduceSparse, form.dtype, op, static_cast<int>(form.sparse_dims));
  print.set_shape(form.shape);
  const Reduction reduction = reduction_for(form.dtype, op, members.size);
  const Planner& planner = impl_->engine->planner();
  return impl_->engine->collective(
      print, parts.own_bytes(),
      [sum = std::move(sum), reduction, &planner](Context& context) {
        return sparse_all_reduce(context, sum->parts(), reduction, planner);
      },
      call);
}

Group::Handle Group::all_reduce_batch(std::shared_ptr<Batch> batch, const Call& call) {
  std::int64_t elements = 0;
  std::size_t bytes_in_all = 0;
  for (const Batch::Item& item : batch->items()) {
    elements += static_cast<std::int64_t>(item.count);
    bytes_in_all += item.bytes();
  }
  Fingerprint print = fingerprint(OpKind::kAllReduce, batch->items().front().reduction.dtype);
  print.set_shape(std::array<std::int64_t, 1>{elements});
  const Planner& planner = impl_->engine->planner();
  return impl_->engine->collective(
      print, bytes_in_all,
      [batch, &planner](Context& context) { return routed_all_reduce_batch(context, *batch, planner); }, call,
      [batch] { return !batch->is_filled(batch->items().size() - 1); });
}

void Group::wake() { impl_->engine->wake(); }

Group::Handle Group::reduce(const void* in, void* out, std::span<const std::int64_t> shape, DType dtype, ReduceOp op,
                            int root, double factor, const Call& call) {
  const Members& members = impl_->members();
  check_rank(members, "root", root);
  check_reduction(members, "reduce", dtype, op);
  Fingerprint print = fingerprint(OpKind::kReduce, dtype, op, root);
  print.set_shape(shape);
  const std::size_t count = print.count;
  check_buffer("reduce", in, count);
  std::byte* target = members.rank == root ? bytes(out) : nullptr;
  const std::size_t size = count * size_of(dtype);
  if (members.rank == root) {
    check_buffer("reduce", out, count);
    check_apart(members, "reduce", {bytes(in), size}, {target, size});
  }
  const Reduction reduction = reduction_for(dtype, op, members.size);
  return impl_->engine->collective(
      print, size,
      [=](Context& context) { return routed_reduce(context, bytes(in), target, count, reduction, root, factor); },
      call);
}

Group::Handle Group::broadcast(void* data, std::span<const std::int64_t> shape, DType dtype, int root,
                               const Call& call) {
  check_rank(impl_->members(), "root", root);
  Fingerprint print = fingerprint(OpKind::kBroadcast, dtype, ReduceOp::kSum, root);
  print.set_shape(shape);
  check_buffer("broadcast", data, print.count);
  const Bytes all{bytes(data), print.count * size_of(dtype)};
  return impl_->engine->collective(
      print, all.size, [=](Context& context) { return routed_broadcast(context, all, root); }, call);
}

Group::Handle Group::all_gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, const Call& call,
                                const Shapes& shapes) {
  const Members& members = impl_->members();
  check_list(members, "all_gather's output", out.size());
  check_count(members, "all_gather's input", in.count, out[static_cast<std::size_t>(members.rank)].count);
  check_buffer("all_gather", in.data, in.count);
  for (const Buffer& buffer : out) check_buffer("all_gather", buffer.data, buffer.count);
  check_apart(members, "all_gather", {view(in, dtype)}, const_views(out, dtype),
              as_const(view(out[static_cast<std::size_t>(members.rank)], dtype)));
  Fingerprint print = fingerprint(OpKind::kAllGather, dtype);
  print.set_counts(counts_of(out));
  add_shapes(print, shapes, false);
  return impl_->all_gather(print, in, out, call);
}

Group::Handle Group::reduce_scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, ReduceOp op, double factor,
                                    const Call& call, const Shapes& shapes) {
  const Members& members = impl_->members();
  check_reduction(members, "reduce_scatter", dtype, op);
  check_list(members, "reduce_scatter's input", in.size());
  check_count(members, "reduce_scatter's output", out.count, in[static_cast<std::size_t>(members.rank)].count);
  check_buffer("reduce_scatter", out.data, out.count);
  for (const ConstBuffer& buffer : in) check_buffer("reduce_scatter", buffer.data, buffer.count);
  check_apart(members, "reduce_scatter", views(in, dtype), {as_const(view(out, dtype))}, as_const(view(out, dtype)));
  Fingerprint print = fingerprint(OpKind::kReduceScatter, dtype, op);
  print.set_counts(counts_of(in));
  add_shapes(print, shapes, true);
  const Reduction reduction = reduction_for(dtype, op, members.size);
  return impl_->engine->collective(
      print, total(in, dtype),
      [blocks = views(in, dtype), target = bytes(out.data), reduction, factor](Context& context) {
        return routed_reduce_scatter(context, blocks, target, reduction, factor);
      },
      call);
}

Group::Handle Group::all_to_all(std::vector<ConstBuffer> in, std::vector<Buffer> out, DType dtype, const Call& call,
                                const Shapes& shapes) {
  const Members& members = impl_->members();
  const auto me = static_cast<std::size_t>(members.rank);
  check_list(members, "all_to_all's input", in.size());
  check_list(members, "all_to_all's output", out.size());
  check_count(members, "all_to_all's output for this rank", out[me].count, in[me].count);
  for (const ConstBuffer& buffer : in) check_buffer("all_to_all", buffer.data, buffer.count);
  for (const Buffer& buffer : out) check_buffer("all_to_all", buffer.data, buffer.count);
  check_apart(members, "all_to_all", views(in, dtype), const_views(out, dtype), as_const(view(out[me], dtype)));
  Fingerprint print = fingerprint(OpKind::kAllToAll, dtype);
  add_shapes(print, shapes, true);
  return impl_->engine->collective(
      print, total(in, dtype),
      [outgoing = views(in, dtype), incoming = views(out, dtype)](Context& context) {
        return pairwise(context, outgoing, incoming);
      },
      call);
}

Group::Handle Group::gather(ConstBuffer in, std::vector<Buffer> out, DType dtype, int root, const Call& call,
                            const Shapes& shapes) {
  const Members& members = impl_->members();
  check_rank(members, "root", root);
  check_buffer("gather", in.data, in.count);
  if (members.rank == root) {
    check_list(members, "gather's output", out.size());
    check_count(members, "gather's output for this rank", out[static_cast<std::size_t>(root)].count, in.count);
    for (const Buffer& buffer : out) check_buffer("gather", buffer.data, buffer.count);
    check_apart(members, "gather", {view(in, dtype)}, const_views(out, dtype),
                as_const(view(out[static_cast<std::size_t>(root)], dtype)));
  } else {
    out.clear();
  }
  std::vector<ConstBytes> outgoing(static_cast<std::size_t>(members.size));
  outgoing[static_cast<std::size_t>(root)] = view(in, dtype);
  std::vector<Bytes> incoming = views(out, dtype);
  incoming.resize(static_cast<std::size_t>(members.size));
  Fingerprint print = fingerprint(OpKind::kGather, dtype, ReduceOp::kSum, root);
  add_open_shape(print, shapes, in.count);
  return impl_->engine->collective(
      print, std::max(total(out, dtype), in.count * size_of(dtype)),
      [outgoing, incoming](Context& context) { return pairwise(context, outgoing, incoming); }, call);
}

Group::Handle Group::scatter(std::vector<ConstBuffer> in, Buffer out, DType dtype, int root, const Call& call,
                             const Shapes& shapes) {
  const Members& members = impl_->members();
  check_rank(members, "root", root);
  check_buffer("scatter", out.data, out.count);
  if (members.rank == root) {
    check_list(members, "scatter's input", in.size());
    check_count(members, "scatter's input for this rank", in[static_cast<std::size_t>(root)].count, out.count);
    for (const ConstBuffer& buffer : in) check_buffer("scatter", buffer.data, buffer.count);
    check_apart(members, "scatter", views(in, dtype), {as_const(view(out, dtype))}, as_const(view(out, dtype)));
  } else {
    in.clear();
  }
  std::vector<ConstBytes> outgoing = views(in, dtype);
  outgoing.resize(static_cast<std::size_t>(members.size));
  std::vector<Bytes> incoming(static_cast<std::size_t>(members.size));
  incoming[static_cast<std::size_t>(root)] = view(out, dtype);
  Fingerprint print = fingerprint(OpKind::kScatter, dtype, ReduceOp::kSum, root);
  add_open_shape(print, shapes, out.count);
  return impl_->engine->collective(
      print, std::max(total(in, dtype), out.count * size_of(dtype)),
      [outgoing, incoming](Context& context) { return pairwise(context, outgoing, incoming); }, call);
}

Group::Handle Group::barrier(const Call& call) {
  return impl_->engine->collective(
      fingerprint(OpKind::kBarrier, DType::kUint8), 0, [](Context& context) { return hierarchical_barrier(context); },
      call);
}

Group::Handle Group::send(ConstBuffer data, DType dtype, int destination, std::int64_t tag, const Call& call) {
  return impl_->engine->send(outgoing("send", impl_->members(), data, dtype, destination, tag), call);
}

Group::Handle Group::offer(ConstBuffer data, DType dtype, int destination, std::int64_t tag) {
  if (data.count == 0) throw InvalidArgument(impl_->members().prefix() + "cannot offer a message of no elements.");
  return impl_->engine->offer(outgoing("offer", impl_->members(), data, dtype, destination, tag));
}

void Group::refuse(int source, std::int64_t tag) {
  check_source(impl_->members(), source);
  impl_->engine->refuse(source, tag);
}

Group::Handle Group::recv(Buffer data, DType dtype, int source, std::int64_t tag, const Call& call) {
  const Members& members = impl_->members();
  if (source != Mailbox::kAnySource) check_source(members, source);
  check_buffer("recv", data.data, data.count);
  Mailbox::Request request{};
  request.data = bytes(data.data);
  request.size = data.count * size_of(dtype);
  request.dtype = dtype;
  request.peer = source;
  request.tag = tag;
  return impl_->engine->receive(std::move(request), call);
}

void Group::push_offers() { impl_->engine->push_offers(); }

Obstacle Group::watch(std::vector<int> ranks) const {
  for (const int rank : ranks) check_rank(impl_->members(), "a rank to watch", rank);
  return watch_ranks(impl_->engine, std::move(ranks));
}

std::unique_ptr<Group> Group::split(int color, int key, const std::string& name) {
  const Members& members = impl_->members();
  struct Choice {
    std::int64_t color, key;
  };
  const Choice own{color, key};
  std::vector<Choice> all(static_cast<std::size_t>(members.size));
  std::vector<Buffer> out;
  for (Choice& choice : all) out.push_back({&choice, 2});
  Fingerprint print = fingerprint(OpKind::kSplit, DType::kInt64);
  print.count = 2;
  impl_->all_gather(print, {&own, 2}, out, {});
  const int number = impl_->splits++;
  const std::string part = members.name + "/" + name + "-" + std::to_string(number);
  std::vector<int> ranks;
  for (int rank = 0; rank < members.size; ++rank) {
    if (all[static_cast<std::size_t>(rank)].color == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
  });
  GroupOptions options = impl_->engine->options();
  // A copy of the world has its numbers.
  std::vector<int> everybody(all.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  if (ranks != everybody) options.world_rank = members.world_rank(members.rank);
  options.name = part + "/" + std::to_string(color);
  options.purpose.clear();
  options.replaced.clear();
  options.obstacle = watch_base(impl_->engine, ranks);
  const auto position = static_cast<int>(std::find(ranks.begin(), ranks.end(), members.rank) - ranks.begin());
  std::unique_ptr<Group> made;
  std::exception_ptr failure;
  try {
    if (color >= 0) made = std::make_unique<Group>(impl_->store, position, static_cast<int>(ranks.size()), options);
  } catch (...) {
    failure = std::current_exception();
  }
  // Rank 0 may hold the store through which the parts find each other.
  impl_->part(part);
  if (failure) std::rethrow_exception(failure);
  return made;
}

std::unique_ptr<Group> Group::twin(const std::string& name, int streams, std::string purpose,
                                   std::vector<std::string> replaced) {
  GroupOptions options = impl_->engine->options();
  options.purpose = std::move(purpose);
  options.replaced = std::move(replaced);
  if (streams > 0) options.streams = streams;
  if (options.chunk_bytes == 0) options.chunk_bytes = kChunkBesideCompute;
  options.name = impl_->members().name + "/" + name + "-" + std::to_string(impl_->splits++);

  if (const std::exception_ptr obstacle = impl_->engine->obstacle()) std::rethrow_exception(obstacle);
  std::vector<int> everybody(static_cast<std::size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  options.obstacle = watch_base(impl_->engine, std::move(everybody));
  return std::make_unique<Group>(impl_->store, rank(), size(), options);
}

std::string Group::explain(std::size_t bytes) const {
  return impl_->engine->planner().explain(bytes, hosts().size(), lanes_of(hosts()), impl_->engine->slot_bytes(),
                                          impl_->engine->streams());
}

std::string Group::batch_algorithm(std::size_t bytes) const {
  return name_of(impl_->engine->planner().batch_choice(bytes / lanes_of(hosts()), hosts().size()));
}

void Group::abort(const std::string& reason) { impl_->engine->abort(reason); }
void Group::shutdown(const std::string& reason) { impl_->engine->shutdown(reason); }
std::exception_ptr Group::error() const { return impl_->engine->error(); }

}  // namespace smdp
