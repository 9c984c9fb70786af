#include "rendezvous/bootstrap.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "common/cores.h"
#include "common/hmac.h"
#include "common/log.h"
#include "rendezvous/farewell.h"
#include "rendezvous/local_mesh.h"
#include "rendezvous/remote_mesh.h"
#include "rendezvous/roster.h"
#include "smdp/error.h"
#include "transport/shm/fd_passing.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

std::string agree_on_secret(Store& store, int rank, const GroupOptions& options) {
  if (!options.secret.empty()) return options.secret;
  if (rank != 0) return store.get("secret", options.init_timeout);
  const std::string secret = to_hex(random_bytes(32));
  store.set("secret", secret);
  log(LogLevel::kInfo, "no SMDP_SECRET: rank 0 drew one and handed it out through the rendezvous store.");
  return secret;
}

// Each host for itself. Where ranks of one cannot share memory, each counts as a host of its own.
void connect_hosts(Store& store, const std::vector<Record>& records, int rank, const std::string& secret,
                   const FileDescriptor& listener, const GroupOptions& options, Deadline deadline,
                   Connections& connections) {
  Members& members = connections.members;
  const auto shared_key = [](int leader) { return "shared/" + std::to_string(leader); };
  const std::vector<int> neighbours = members.local_ranks();
  const bool leads = rank == neighbours.front();
  bool shared = false;
  try {
    shared = connect_local_ranks(store, records, neighbours, rank, secret, listener, options, deadline, connections);
  } catch (const Error& error) {
    if (leads) tell_failure(store, shared_key(rank), error);
    throw;
  }
  if (members.size == 1) return;
  if (leads) store.set(shared_key(rank), shared ? "1" : "0");
  std::vector<std::vector<int>> hosts;
  for (const std::vector<int>& host : members.hosts) {
    if (is_shared(store.get(shared_key(host.front()), options.init_timeout), members, host.front())) {
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
  Connections alone;
  alone.members = members;
  connect_local_ranks(store, records, {rank}, rank, secret, listener, options, deadline, alone);
  connections.segment = std::move(alone.segment);
  connections.eventfds = std::move(alone.eventfds);
}

}  // namespace

std::shared_ptr<Store> view_for_group(std::shared_ptr<Store> base, const std::string& name,
                                      std::function<bool()> interrupted) {
  return make_prefix_store("smdp/" + name, std::move(base), std::move(interrupted));
}

Connections bootstrap(Store& base, int rank, int size, const GroupOptions& options) {
  const std::shared_ptr<Store> view =
      view_for_group(std::shared_ptr<Store>(&base, [](Store*) {}), options.name, options.interrupted);
  Store& store = *view;
  const Deadline deadline = std::chrono::steady_clock::now() + options.init_timeout;
  Connections connections;
  Members& members = connections.members;
  members.rank = rank;
  members.size = size;
  members.name = options.name;

  Record own = describe_self(rank, options, to_hex(random_bytes(12)));
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
  for (const int neighbour : members.local_ranks()) masks.push_back(records[static_cast<std::size_t>(neighbour)].cores);
  members.local_cores = core_count_of(masks);
  const auto count = static_cast<std::size_t>(size);
  connections.data.resize(count);
  connections.mail.resize(count);
  connections.control.resize(rank == 0 ? count : 1);

  try {
    connect_hosts(store, records, rank, secret, local_listener, options, deadline, connections);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInternal) {
      local_listener = FileDescriptor();  // who has called is told at once
      rank == 0 ? await_farewells(store, all_but_first(size), options.interrupted) : say_farewell(store, rank);
    }
    throw;
  }
  if (rank != 0) say_farewell(store, rank);
  members.local_index = members.local_index_of(rank);
  if (members.hosts.size() > 1) {
    connect_remote_ranks(records, secret, listeners, options, deadline, connections);
  }
  return connections;
}

}  // namespace smdp
