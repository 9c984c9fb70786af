// How a group is made: the ranks meet, connect, and leave the store.
#include "collectives/group_impl.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "collectives/group_arguments.h"
#include "collectives/registry.h"
#include "collectives/routes.h"
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

// A store or a connection may break before this process learns that the rank at its other end is gone.
constexpr std::chrono::seconds kNews{1};
constexpr std::chrono::milliseconds kNewsPause{20};

// Ends early if a rank is gone, or if another rank waits for this one in another group and so never joins.
Connections meet(Store& store, int rank, int size, GroupSetup setup) {
  const int world_rank = setup.world_rank < 0 ? rank : setup.world_rank;
  const Meeting meeting(setup.name, size, setup.obstacle, world_rank, setup.purpose, setup.replaced);
  setup.interrupted = [asked = setup.interrupted, &meeting] {
    meeting.check();
    return asked && asked();
  };
  try {
    return bootstrap(store, rank, size, setup, [&setup] { return shared_progress(setup.threads); });
  } catch (const ShortageError&) {
    throw;
  } catch (const Error& error) {
    // Wrong settings of the ranks make other ranks leave, and not the other way round.
    if (error.kind() == ErrorKind::kConfig || error.kind() == ErrorKind::kMismatch) throw;
    meeting.check(true);  // a more precise error than the store's
    if (!setup.obstacle || (error.kind() != ErrorKind::kInternal && error.kind() != ErrorKind::kPeerLost)) throw;
    const bool has_lost_store = error.kind() == ErrorKind::kPeerLost && setup.departure_of_server;
    for (const auto end = Clock::now() + kNews; Clock::now() < end;) {
      std::this_thread::sleep_for(kNewsPause);
      meeting.check(true);
      const std::exception_ptr departure = has_lost_store ? setup.departure_of_server() : nullptr;
      if (departure) std::rethrow_exception(departure);
    }
    throw;
  }
}

}  // namespace

Group::Impl::Impl(std::shared_ptr<Store> store_, int rank, int size, GroupSetup setup_)
    : store(std::move(store_)), setup(std::move(setup_)) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ConfigError("[smdp] rank is " + std::to_string(rank) + " and world size " + std::to_string(size) +
                      "; allowed: rank from 0 to world size - 1.");
  }
  Connections connections = meet(*store, rank, size, setup);
  try {
    engine = std::make_shared<Engine>(std::move(connections), setup);
  } catch (const ShortageError& error) {
    // Connected ranks have already been told. Others may still be joining, and rank 0 stays for them.
    GroupView view(store, setup.name, {});
    view.fail(without_tag(error.what()));
    if (rank == 0) await_departures(view, all_but_first(size), setup.interrupted);
    throw;
  }
  register_engine(engine);
  try {
    if (rank == 0) part(setup.name);
    if (!setup.trace.empty()) open_trace();
  } catch (const std::exception& error) {
    engine->shutdown(without_tag(error.what()));
    throw;
  }
}

Group::Impl::~Impl() {
  if (engine) engine->shutdown("");
}

void Group::Impl::open_trace() const {
  const Members& all = members();
  trace::open(setup.trace, setup.world_rank < 0 ? all.rank : setup.world_rank,
              setup.world_size < 0 ? all.size : setup.world_size, all.host_names[static_cast<std::size_t>(all.rank)]);
}

void Group::Impl::part(const std::string& name) const {
  GroupView view(store, name, {});
  if (members().rank != 0) return announce_departure(view, members().rank);
  bool is_told = false;
  await_departures(view, all_but_first(members().size), setup.interrupted, [&](int rank) {
    if (const std::exception_ptr error = engine->failures().error(); error && !std::exchange(is_told, true)) {
      view.fail(without_tag(Failure::of(error).text));  // a rank that is still joining has no connection that tells it
    }
    return engine->failures().death_of({rank}) || engine->failures().departure_of({rank});
  });
}

Group::Handle Group::Impl::all_gather(const Fingerprint& print, ConstBuffer in, const std::vector<Buffer>& out,
                                      const Call& call) {
  return engine->collective(
      print, total(out, print.dtype),
      [blocks = views(out, print.dtype), own = view(in, print.dtype)](Context& context) {
        return routed_all_gather(context, blocks, own);
      },
      call);
}

}  // namespace smdp
