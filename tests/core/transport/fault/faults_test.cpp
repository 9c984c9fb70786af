// Every operation over a transport that loses, delays, reorders or ends what one rank tells the others: each rank gets
// the right result or an error that names another rank, in time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/hierarchical.h"
#include "collectives/registry.h"
#include "collectives/routes.h"
#include "collectives/sparse_all_reduce.h"
#include "ranks.h"
#include "rendezvous/bootstrap.h"
#include "smdp/error.h"
#include "smdp/internal/group_setup.h"
#include "smdp/sparse_sum.h"
#include "transport/fault/faulty_transport.h"

namespace smdp::test {
namespace {

using std::chrono::milliseconds;

constexpr int kFaulty = 1;
constexpr int kRoot = 2;                // another one
constexpr std::size_t kCount = 12'000;  // elements of a block: several rounds
constexpr milliseconds kTimeout{400};
// Beside the deadline of an operation: for threads to get their turn, on a machine that does other things, too.
constexpr milliseconds kSlack{20'000};

using Floats = std::vector<float>;

std::byte* bytes(Floats& values) { return reinterpret_cast<std::byte*>(values.data()); }
Bytes view(Floats& values) { return {bytes(values), values.size() * sizeof(float)}; }
ConstBytes const_view(Floats& values) { return {bytes(values), values.size() * sizeof(float)}; }

template <class View>
auto views(std::vector<Floats>& blocks, View view) {
  std::vector<decltype(view(blocks.front()))> all;
  for (Floats& block : blocks) all.push_back(view(block));
  return all;
}

// What rank `from` has for rank `to`; small whole numbers, whose sums are exact.
Floats block(int from, int to, std::size_t count = kCount) {
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(from * 7 + to * 3 + static_cast<int>(i % 11));
  }
  return values;
}

Floats sum(int size, int to, std::size_t count = kCount) {
  Floats all(count);
  for (int from = 0; from < size; ++from) {
    const Floats one = block(from, to, count);
    std::transform(all.begin(), all.end(), one.begin(), all.begin(), std::plus<>());
  }
  return all;
}

std::vector<Floats> empty_blocks(int size) {
  return std::vector<Floats>(static_cast<std::size_t>(size), Floats(kCount, -1.0F));
}

constexpr Reduction kSum{DType::kFloat32, ReduceOp::kSum};

Fingerprint print_of(OpKind kind, int root = -1) {
  Fingerprint print;
  print.kind = kind;
  print.dtype = DType::kFloat32;
  print.root = root;
  return print;
}

// One rank's part of a group.
class Rank {
 public:
  explicit Rank(Engine& engine) : engine_(engine) {}

  int rank() const { return engine_.members().rank; }
  int size() const { return engine_.members().size; }

  void run(const Fingerprint& print, Engine::Body body) { engine_.collective(print, 0, std::move(body), {}); }
  const Planner& planner() const { return engine_.planner(); }

  void send(Floats& values, int to) { engine_.send(request(values, to), {}); }
  void receive(Floats& values, int from) { engine_.receive(request(values, from), {}); }

 private:
  static Mailbox::Request request(Floats& values, int peer) {
    Mailbox::Request request{};
    request.data = bytes(values);
    request.size = values.size() * sizeof(float);
    request.dtype = DType::kFloat32;
    request.peer = peer;
    return request;
  }

  Engine& engine_;
};

bool all_reduce(Rank& rank, std::size_t count) {
  Floats in = block(rank.rank(), 0, count);
  Floats out(count);
  rank.run(print_of(OpKind::kAllReduce), [&](Context& context) {
    return routed_all_reduce(context, bytes(in), bytes(out), count, kSum, 1.0, rank.planner());
  });
  return out == sum(rank.size(), 0, count);
}

bool all_reduce_batch(Rank& rank) {
  Floats first = block(rank.rank(), 0);
  Floats second = block(rank.rank(), 1);
  const Batch batch({{bytes(first), bytes(first), kCount, kSum}, {bytes(second), bytes(second), kCount, kSum}}, 2);
  rank.run(print_of(OpKind::kAllReduce),
           [&](Context& context) { return routed_all_reduce_batch(context, batch, rank.planner()); });
  return first == sum(rank.size(), 0) && second == sum(rank.size(), 1);
}

// Each rank has the row of its number.
bool all_reduce_sparse(Rank& rank) {
  const std::int64_t index = rank.rank();
  Floats row = block(rank.rank(), 0, 100);
  SparseSum values({{1000, 100}, 1, DType::kFloat32}, {&index, row.data(), 1, true});
  rank.run(print_of(OpKind::kAllReduceSparse, 1),
           [&](Context& context) { return sparse_all_reduce(context, values.parts(), kSum, rank.planner()); });
  if (values.is_dense() || values.count() != static_cast<std::size_t>(rank.size())) return false;
  std::vector<std::int64_t> indices(values.count());
  Floats rows(values.count() * 100);
  values.write(indices.data(), rows.data());
  Floats expected;
  for (int from = 0; from < rank.size(); ++from) {
    const Floats one = block(from, 0, 100);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  return rows == expected;
}

bool reduce(Rank& rank) {
  Floats in = block(rank.rank(), 0);
  Floats out(kCount);
  const bool is_root = rank.rank() == kRoot;
  rank.run(print_of(OpKind::kReduce, kRoot), [&](Context& context) {
    return routed_reduce(context, bytes(in), is_root ? bytes(out) : nullptr, kCount, kSum, kRoot, 1.0);
  });
  return !is_root || out == sum(rank.size(), 0);
}

// The faulty rank is the root.
bool broadcast(Rank& rank) {
  Floats values = rank.rank() == kFaulty ? block(kFaulty, 0) : Floats(kCount);
  rank.run(print_of(OpKind::kBroadcast, kFaulty),
           [&](Context& context) { return routed_broadcast(context, view(values), kFaulty); });
  return values == block(kFaulty, 0);
}

bool all_gather(Rank& rank) {
  Floats in = block(rank.rank(), 0);
  std::vector<Floats> out = empty_blocks(rank.size());
  rank.run(print_of(OpKind::kAllGather),
           [&](Context& context) { return routed_all_gather(context, views(out, view), const_view(in)); });
  for (int from = 0; from < rank.size(); ++from) {
    if (out[static_cast<std::size_t>(from)] != block(from, 0)) return false;
  }
  return true;
}

bool reduce_scatter(Rank& rank) {
  std::vector<Floats> in;
  for (int to = 0; to < rank.size(); ++to) in.push_back(block(rank.rank(), to));
  Floats out(kCount);
  rank.run(print_of(OpKind::kReduceScatter), [&](Context& context) {
    return routed_reduce_scatter(context, views(in, const_view), bytes(out), kSum, 1.0);
  });
  return out == sum(rank.size(), rank.rank());
}

bool all_to_all(Rank& rank) {
  std::vector<Floats> in;
  for (int to = 0; to < rank.size(); ++to) in.push_back(block(rank.rank(), to));
  std::vector<Floats> out = empty_blocks(rank.size());
  rank.run(print_of(OpKind::kAllToAll),
           [&](Context& context) { return pairwise(context, views(in, const_view), views(out, view)); });
  for (int from = 0; from < rank.size(); ++from) {
    if (out[static_cast<std::size_t>(from)] != block(from, rank.rank())) return false;
  }
  return true;
}

bool gather(Rank& rank) {
  Floats in = block(rank.rank(), kRoot);
  std::vector<Floats> out = empty_blocks(rank.size());
  const bool is_root = rank.rank() == kRoot;
  std::vector<ConstBytes> outgoing(out.size());
  outgoing[kRoot] = const_view(in);
  rank.run(print_of(OpKind::kGather, kRoot), [&](Context& context) {
    return pairwise(context, outgoing, is_root ? views(out, view) : std::vector<Bytes>(out.size()));
  });
  for (int from = 0; is_root && from < rank.size(); ++from) {
    if (out[static_cast<std::size_t>(from)] != block(from, kRoot)) return false;
  }
  return true;
}

bool scatter(Rank& rank) {
  std::vector<Floats> in;
  for (int to = 0; to < rank.size(); ++to) in.push_back(block(kFaulty, to));
  Floats out(kCount);
  const bool is_root = rank.rank() == kFaulty;
  std::vector<Bytes> incoming(in.size());
  incoming[kFaulty] = view(out);
  rank.run(print_of(OpKind::kScatter, kFaulty), [&](Context& context) {
    return pairwise(context, is_root ? views(in, const_view) : std::vector<ConstBytes>(in.size()), incoming);
  });
  return out == block(kFaulty, rank.rank());
}

bool barrier(Rank& rank) {
  rank.run(print_of(OpKind::kBarrier), [](Context& context) { return hierarchical_barrier(context); });
  return true;
}

// Round a ring; up to Mailbox::kEager bytes a message travels at once.
bool send_and_receive(Rank& rank, std::size_t count) {
  Floats out = block(rank.rank(), 0, count);
  Floats in(count);
  const int left = (rank.rank() + rank.size() - 1) % rank.size();
  const int right = (rank.rank() + 1) % rank.size();
  if (rank.rank() % 2 == 0) rank.send(out, right);
  rank.receive(in, left);
  if (rank.rank() % 2 != 0) rank.send(out, right);
  return in == block(left, 0, count);
}

struct Operation {
  const char* name;
  std::function<bool(Rank&)> run;  // whether the result is right
  const char* algorithm = "auto";
  bool is_mail = false;
};

const std::vector<Operation>& operations() {
  static const auto some = [](Rank& rank) { return all_reduce(rank, kCount); };
  static const std::vector<Operation> all{
      {"all_reduce of little", [](Rank& rank) { return all_reduce(rank, 10); }},
      {"all_reduce", some},
      {"all_reduce, direct", some, "direct"},
      {"all_reduce, ring", some, "ring"},
      {"all_reduce, recursive doubling", some, "recursive_doubling"},
      {"all_reduce, tree", some, "tree"},
      {"all_reduce of a batch", all_reduce_batch},
      {"all_reduce of sparse tensors", all_reduce_sparse},
      {"reduce", reduce},
      {"broadcast", broadcast},
      {"all_gather", all_gather},
      {"reduce_scatter", reduce_scatter},
      {"all_to_all", all_to_all},
      {"gather", gather},
      {"scatter", scatter},
      {"barrier", barrier},
      {"send and recv", [](Rank& rank) { return send_and_receive(rank, 10); }, "auto", true},
      {"send and recv of much", [](Rank& rank) { return send_and_receive(rank, 20'000); }, "auto", true},
  };
  return all;
}

// What became of an operation on one rank.
struct Outcome {
  bool is_right = false;
  std::string error;
  std::chrono::steady_clock::duration took{};
};

// Runs operations one after the other in a group of its own, up to the first error. By rank, then by operation.
std::vector<std::vector<Outcome>> run_with(const Layout& layout, const Faults& faults,
                                           const std::vector<Operation>& all, milliseconds timeout) {
  const std::shared_ptr<Store> store = make_memory_store();
  const int size = world_size(layout);
  std::vector<std::vector<Outcome>> outcomes(static_cast<std::size_t>(size));
  std::barrier over(size);  // nobody leaves before
  const auto one = [&](int rank, std::size_t host) {
    GroupSetup options{quick_options()};
    options.timeout = timeout;
    options.algorithm = all.front().algorithm;
    options.stall_time = milliseconds(0);
    options.streams = 2;
    if (layout.size() > 1) options.host_id = "host" + std::to_string(host);
    Connections connections = bootstrap(*store, rank, size, options, [] { return shared_progress(1); });
    if (rank == kFaulty) {
      connections.transport = std::make_unique<FaultyTransport>(std::move(connections.transport), connections.progress,
                                                                connections.members, faults);
    }
    Engine engine(std::move(connections), options);
    Rank own(engine);
    for (const Operation& operation : all) {
      Outcome outcome;
      const auto begin = std::chrono::steady_clock::now();
      try {
        outcome.is_right = operation.run(own);
      } catch (const Error& error) {
        outcome.error = error.what();
      }
      outcome.took = std::chrono::steady_clock::now() - begin;
      outcomes[static_cast<std::size_t>(rank)].push_back(outcome);
      if (!outcome.error.empty()) break;
    }
    over.arrive_and_wait();
  };
  std::vector<std::thread> threads;
  int rank = 0;
  for (std::size_t host = 0; host < layout.size(); ++host) {
    for (int i = 0; i < layout[host]; ++i, ++rank) threads.emplace_back(one, rank, host);
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{{3}, {2, 2}, {1, 1, 1}};
  return all;
}

// Groups that wait for deadlines, which they do at the same time.
class AtOnce {
 public:
  void add(std::function<void()> work) { threads_.emplace_back(std::move(work)); }
  ~AtOnce() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

// The rank that an error comes from goes by "rank 1 of 3", a peer by "rank 2 (host b)". Where data passes through
// several ranks this is whom the first that gave up waited for.
bool names_a_peer(const std::string& error, int size) {
  for (int peer = 0; peer < size; ++peer) {
    if (error.find("rank " + std::to_string(peer) + " (host ") != std::string::npos) return true;
  }
  return false;
}

// What is late is only late: everything ends with the right result.
void expect_right(Fault fault) {
  AtOnce groups;
  for (const Layout& layout : layouts()) {
    std::vector<std::vector<Operation>> runs(1);
    for (const Operation& operation : operations()) {
      if (operation.algorithm == std::string("auto")) {
        runs.front().push_back(operation);
      } else if (layout.size() > 1) {
        runs.push_back({operation});
      }
    }
    for (const auto& all : runs) {
      groups.add([=] {
        const Faults faults{fault, 0};
        const auto outcomes = run_with(layout, faults, all, milliseconds(60'000));
        for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
          for (std::size_t i = 0; i < outcomes[rank].size(); ++i) {
            EXPECT_TRUE(outcomes[rank][i].is_right)
                << all[i].name << " on " << describe(layout) << ", rank " << rank << ": " << outcomes[rank][i].error;
          }
        }
        if (all.size() == 1) return;  // where it is told to one rank alone, nothing is overtaken
        EXPECT_GT(faults.hits->load(), 0) << all.front().name << " on " << describe(layout);
      });
    }
  }
}

TEST(Faults, DelaysChangeNoResult) { expect_right(Fault::kDelay); }

TEST(Faults, AnotherOrderChangesNoResult) { expect_right(Fault::kReorder); }

// What one operation makes of a fault. Returns whether some rank got an error.
bool expect_right_or_error(const Layout& layout, const Operation& operation, const Faults& faults) {
  const auto outcomes = run_with(layout, faults, {operation}, kTimeout);
  const int size = world_size(layout);
  const std::string what = std::string(operation.name) + " on " + describe(layout) + ", fault " +
                           std::to_string(static_cast<int>(faults.fault)) + " at " + std::to_string(faults.at);
  bool has_failed = false;
  for (int rank = 0; rank < size; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)].front();
    const std::string here = what + ", rank " + std::to_string(rank) + ": " + outcome.error;
    EXPECT_LT(outcome.took, kTimeout + kSlack) << here;
    if (outcome.error.empty()) {
      EXPECT_TRUE(outcome.is_right) << here << "wrong";
      continue;
    }
    has_failed = true;
    EXPECT_TRUE(names_a_peer(outcome.error, size)) << here;
  }
  return has_failed;
}

void expect_right_or_error(Fault fault, const std::vector<std::uint64_t>& places) {
  std::atomic<int> failures = 0;
  std::mutex mutex;
  std::set<std::string> struck;  // operations, in some layout
  {
    AtOnce groups;
    for (const Layout& layout : layouts()) {
      const bool is_local = layout.size() == 1;
      for (const Operation& operation : operations()) {
        if (is_local && operation.algorithm != std::string("auto")) continue;
        if (is_local && fault == Fault::kClose && !operation.is_mail) continue;  // a board has no connection
        for (const std::uint64_t at : places) {
          groups.add([&, at] {
            const Faults faults{fault, at};
            const bool has_failed = expect_right_or_error(layout, operation, faults);
            failures += has_failed ? 1 : 0;
            const std::lock_guard lock(mutex);
            if (faults.hits->load() > 0) struck.insert(operation.name);
            EXPECT_TRUE(has_failed || fault != Fault::kSilence || at != 0)
                << operation.name << " on " << describe(layout);
          });
        }
      }
    }
  }
  EXPECT_GT(failures.load(), 0);
  for (const Operation& operation : operations()) EXPECT_TRUE(struck.contains(operation.name)) << operation.name;
}

TEST(Faults, WhatIsLostEndsInAnErrorThatNamesARank) { expect_right_or_error(Fault::kDrop, {0, 3}); }

TEST(Faults, ASilentRankEndsInAnErrorThatNamesARank) { expect_right_or_error(Fault::kSilence, {0, 4}); }

TEST(Faults, AClosedConnectionEndsInAnErrorThatNamesARank) { expect_right_or_error(Fault::kClose, {0, 30'000}); }

}  // namespace
}  // namespace smdp::test
