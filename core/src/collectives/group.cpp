// The public class Group except for its calls: its properties, the groups made from it, and its end.
#include "smdp/group.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "collectives/chunks.h"
#include "collectives/engine/engine.h"
#include "collectives/group_arguments.h"
#include "collectives/group_impl.h"
#include "collectives/watch.h"
#include "common/directory.h"
#include "smdp/error.h"
#include "smdp/internal/group_setup.h"

namespace smdp {
namespace {

constexpr int kStreamsToTry = 4;
constexpr int kMostRanksToTryStreams = 16;
// Chunk size for operations beside a backward pass that occupies the cores: every wait then switches threads, as it
// does if there are more ranks than cores. Measured, see docs/benchmarks.md.
constexpr std::size_t kChunkBesideCompute = std::size_t{2} << 20;

}  // namespace

Group::Group(const GroupSetup& setup, std::shared_ptr<Store> store, int rank, int size)
    : impl_(std::make_shared<Impl>(std::move(store), rank, size, setup)) {
  impl_->id = Directory<Impl>::instance().add(impl_);
}
Group::Group(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options)
    : Group(GroupSetup{options}, std::move(store), rank, size) {}
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
  const GroupOptions& options = impl_->setup;
  const Members& members = impl_->members();
  // Several rails need a stream each, and many ranks would need many descriptors.
  const bool is_open = options.streams == 0 && options.socket_ifname.empty();
  return is_open && members.hosts.size() > 1 && members.size <= kMostRanksToTryStreams ? kStreamsToTry : 0;
}

std::string Group::tag() const { return impl_->members().tag(); }
const std::vector<std::string>& Group::host_names() const { return impl_->members().host_names; }

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
  GroupSetup setup = impl_->setup;
  // A copy of the world has the same rank numbers.
  std::vector<int> all_ranks(all.size());
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  if (ranks != all_ranks) setup.world_rank = members.world_rank(members.rank);
  setup.name = part + "/" + std::to_string(color);
  setup.purpose.clear();
  setup.replaced.clear();
  setup.obstacle = watch_base(impl_->engine, ranks);
  setup.departure_of_server = watch_server(impl_->engine);
  const auto position = static_cast<int>(std::find(ranks.begin(), ranks.end(), members.rank) - ranks.begin());
  std::unique_ptr<Group> made;
  std::exception_ptr failure;
  try {
    if (color >= 0) made = std::make_unique<Group>(setup, impl_->store, position, static_cast<int>(ranks.size()));
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
  GroupSetup setup = impl_->setup;
  setup.purpose = std::move(purpose);
  setup.replaced = std::move(replaced);
  if (streams > 0) setup.streams = streams;
  if (setup.chunk_bytes == 0) setup.chunk_bytes = kChunkBesideCompute;
  setup.name = impl_->members().name + "/" + name + "-" + std::to_string(impl_->splits++);

  if (const std::exception_ptr obstacle = impl_->engine->failures().obstacle()) std::rethrow_exception(obstacle);
  std::vector<int> all_ranks(static_cast<std::size_t>(size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  setup.obstacle = watch_base(impl_->engine, std::move(all_ranks));
  setup.departure_of_server = watch_server(impl_->engine);
  return std::make_unique<Group>(setup, impl_->store, rank(), size());
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
std::exception_ptr Group::error() const { return impl_->engine->failures().error(); }

}  // namespace smdp
