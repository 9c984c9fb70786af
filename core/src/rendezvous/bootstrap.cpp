#include "rendezvous/bootstrap.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "common/cores.h"
#include "common/failure.h"
#include "common/hmac.h"
#include "common/log.h"
#include "common/open_files.h"
#include "common/shortage.h"
#include "rendezvous/departure.h"
#include "rendezvous/group_view.h"
#include "rendezvous/local_mesh.h"
#include "rendezvous/remote_mesh.h"
#include "rendezvous/roster.h"
#include "rendezvous/wires.h"
#include "smdp/error.h"
#include "transport/control.h"
#include "transport/shm/fd_passing.h"
#include "transport/shm_tcp_transport.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

constexpr std::chrono::milliseconds kFailureCheck{500};
constexpr std::chrono::milliseconds kNews{1000};
constexpr std::chrono::milliseconds kNewsPause{50};

std::string agree_on_secret(Store& store, int rank, const GroupOptions& options) {
  if (!options.secret.empty()) return options.secret;
  if (rank != 0) return store.get("secret", options.init_timeout);
  const std::string secret = to_hex(random_bytes(32));
  store.set("secret", secret);
  log(LogLevel::kInfo,
      "SMDP_SECRET is not set: rank 0 generated a secret and distributed it through the rendezvous store.");
  return secret;
}

// Connects each host separately. If the ranks of one cannot share memory, each counts as a separate host.
void connect_hosts(Store& store, const std::vector<Record>& records, int rank, const std::string& secret,
                   const FileDescriptor& listener, const GroupSetup& options, Deadline deadline, Wires& wires) {
  Members& members = wires.members;
  const auto shared_key = [](int leader) { return "shared/" + std::to_string(leader); };
  const std::vector<int> neighbors = members.local_ranks();
  const bool leads = rank == neighbors.front();
  const bool shared = connect_local_ranks(store, records, neighbors, rank, secret, listener, options, deadline, wires);
  if (members.size == 1) return;
  if (leads) store.set(shared_key(rank), shared ? "1" : "0");
  std::vector<std::vector<int>> hosts;
  for (const std::vector<int>& host : members.hosts) {
    if (store.get(shared_key(host.front()), options.init_timeout) == "1") {
      hosts.push_back(host);
    } else {
      for (const int member : host) hosts.push_back({member});
      if (host.front() == rank) {
        log(LogLevel::kWarning, "ranks on host " + members.host_names[static_cast<std::size_t>(rank)] +
                                    " cannot share memory; they use TCP instead.");
      }
    }
  }
  std::sort(hosts.begin(), hosts.end());
  members.hosts = hosts;
  members.host_index = members.host_of(rank);
  if (shared) return;
  Wires alone;
  alone.members = members;
  alone.progress = wires.progress;
  connect_local_ranks(store, records, {rank}, rank, secret, listener, options, deadline, alone);
  wires.segment = std::move(alone.segment);
  wires.doorbells = std::move(alone.doorbells);
}

// Waits for connections must check for failures; waits for the store do so themselves.
GroupSetup watching(GroupView& store, const GroupSetup& options) {
  GroupSetup watching = options;
  watching.interrupted = [&store, asked = options.interrupted,
                          next = std::chrono::steady_clock::now() + kFailureCheck]() mutable {
    if (const auto now = std::chrono::steady_clock::now(); now >= next) {
      next = now + kFailureCheck;
      store.throw_failure();
    }
    return asked && asked();
  };
  return watching;
}

// Does all of bootstrap() except reporting a failure, which needs the connections made so far.
void meet(GroupView& store, int rank, int size, const GroupSetup& options,
          const std::function<std::shared_ptr<Progress>()>& take_progress, Wires& wires) {
  const Deadline deadline = std::chrono::steady_clock::now() + options.init_timeout;
  Members& members = wires.members;
  members.rank = rank;
  members.size = size;
  members.name = options.name;

  prepare_open_files();
  throw_noted_shortage();
  wires.progress = take_progress();
  Record own = describe_self(rank, options, to_hex(random_bytes(12)), wires.progress->doorbell_name());
  FileDescriptor local_listener = listen_local(own.local_name);
  std::vector<FileDescriptor> listeners;
  const auto listen = [&](Record& record, const std::vector<std::string>& addresses) {
    for (const std::string& address : addresses) {
      listeners.push_back(listen_on(address, 0));
      record.rails.push_back({address, local_port(listeners.back())});
    }
  };
  std::vector<Record> records{own};
  if (size > 1) {
    if (rank != 0) listen(own, own_addresses(options));
    records = exchange_records(store, rank, size, own, options, [&](Record& master, const std::vector<Record>& others) {
      listen(master, addresses_of_master(master, others, options));
    });
  }
  introduce(records, members);
  if (size > 1) {
    check_shared(store, records, members, options.interrupted);
    const auto moved_key = [](int mover) { return "moved/" + std::to_string(mover); };
    if (must_move(records, rank)) {
      listeners.clear();
      own.rails.clear();
      listen(own, {records[0].rails[0].address});
      store.set(moved_key(rank), encode_rails(own.rails));
    }
    for (int mover = 1; mover < size; ++mover) {
      if (!must_move(records, mover)) continue;
      records[static_cast<std::size_t>(mover)].rails = decode_rails(store.get(moved_key(mover), options.init_timeout));
    }
  }
  const std::string secret = size == 1 ? "alone" : agree_on_secret(store, rank, options);

  members.hosts = group_by_host(records);
  members.host_index = members.host_of(rank);
  std::vector<std::string> masks;
  for (const int neighbor : members.local_ranks()) masks.push_back(records[static_cast<std::size_t>(neighbor)].cores);
  members.local_cores = core_count_of(masks);
  const auto count = static_cast<std::size_t>(size);
  wires.data.resize(count);
  wires.mail.resize(count);
  wires.control.resize(rank == 0 ? count : 1);

  const GroupSetup watched = watching(store, options);
  connect_hosts(store, records, rank, secret, local_listener, watched, deadline, wires);
  members.local_index = members.local_index_of(rank);
  if (members.hosts.size() > 1) {
    connect_remote_ranks(records, secret, listeners, watched, deadline, wires);
  }
}

// A rank that fails closes its connections and reports the reason a moment later. Throws that reason.
void await_failure(GroupView& store) {
  for (const auto end = std::chrono::steady_clock::now() + kNews; std::chrono::steady_clock::now() < end;) {
    store.throw_failure();
    std::this_thread::sleep_for(kNewsPause);
  }
}

// Returns this rank's error, and sends it to the other ranks unless one of them reported it.
ShortageError end_meeting(GroupView& store, int rank, int size, const GroupSetup& options, const Wires& wires,
                          const Error& error) {
  const std::string tag = tag_of_self(rank, size, options);
  const std::string reason = without_tag(tag) + ": " + without_tag(error.what());
  store.fail(reason);
  // Some ranks may have all they need from the store and wait in the group's first operation.
  Control::abort_over(wires.control, rank, {ErrorKind::kInternal, reason, {}});
  rank == 0 ? await_departures(store, all_but_first(size), options.interrupted) : announce_departure(store, rank);
  return ShortageError(tag + ": group '" + options.name + "' cannot be made: " + without_tag(error.what()));
}

}  // namespace

Connections bootstrap(Store& base, int rank, int size, const GroupSetup& options,
                      const std::function<std::shared_ptr<Progress>()>& take_progress) {
  GroupView store(std::shared_ptr<Store>(&base, [](Store*) {}), options.name, options.interrupted);
  Wires wires;
  const auto end = [&](const Error& error) { return end_meeting(store, rank, size, options, wires, error); };
  base.check_owner();
  try {
    meet(store, rank, size, options, take_progress, wires);
    release_open_files();
    if (rank != 0) announce_departure(store, rank);
    auto transport =
        std::make_unique<ShmTcpTransport>(wires.progress, wires.members, wires.segment, std::move(wires.doorbells),
                                          std::move(wires.data), std::move(wires.mail));
    return {wires.members, wires.progress, std::move(transport), std::move(wires.control)};
  } catch (const ShortageError& error) {
    throw end(error);
  } catch (const std::bad_alloc&) {
    throw end(shortage("malloc", "the group", ENOMEM));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInternal) throw;
    try {
      await_failure(store);
    } catch (const ShortageError& cause) {
      throw end(cause);
    }
    end(error);
    throw;
  }
}

}  // namespace smdp
