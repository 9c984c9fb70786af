#include "rendezvous/bootstrap.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/cores.h"
#include "common/hmac.h"
#include "common/log.h"
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

// Rank 0 listens where the others reach it, which they know better than it does: a host's own name often means
// 127.0.1.1 to itself.
std::string address_of_master(const Record& own, const std::vector<Record>& others, const GroupOptions& options) {
  if (!options.socket_ifname.empty()) return address_of_interface(options.socket_ifname);
  std::string address = "127.0.0.1";
  for (const Record& other : others) {
    if (other.master_seen.empty()) continue;
    address = other.master_seen;
    if (other.host_key != own.host_key) break;
  }
  return address;
}

}  // namespace

Connections bootstrap(Store& base, int rank, int size, const GroupOptions& options) {
  const std::shared_ptr<Store> view =
      make_prefix_store("smdp/" + options.name, std::shared_ptr<Store>(&base, [](Store*) {}));
  Store& store = *view;
  const Deadline deadline = std::chrono::steady_clock::now() + options.init_timeout;
  Connections connections;
  Members& members = connections.members;
  members.rank = rank;
  members.size = size;
  members.name = options.name;

  const std::string secret = size == 1 ? "alone" : agree_on_secret(store, rank, options);
  Record own = describe_self(rank, options, to_hex(random_bytes(12)));
  const FileDescriptor local_listener = listen_local(own.local_name);
  FileDescriptor listener;
  const auto listen = [&](Record& record) {
    listener = listen_on(record.address, 0);
    record.port = local_port(listener);
  };
  std::vector<Record> records{own};
  if (size > 1) {
    if (rank != 0) {
      own.address = own_address(options);
      listen(own);
    }
    records = exchange_records(store, rank, size, own, options, [&](Record& master, const std::vector<Record>& others) {
      master.address = address_of_master(master, others, options);
      listen(master);
    });
  }

  for (const Record& record : records) members.host_names.push_back(record.host_name);
  members.hosts = group_by_host(records);
  members.host_index = members.host_of(rank);
  std::vector<std::string> masks;
  for (const int neighbour : members.local_ranks()) masks.push_back(records[static_cast<std::size_t>(neighbour)].cores);
  members.local_cores = core_count_of(masks);
  const auto count = static_cast<std::size_t>(size);
  connections.data.resize(count);
  connections.mail.resize(count);
  connections.control.resize(rank == 0 ? count : 1);

  const std::vector<int> neighbours = members.local_ranks();
  const bool shared =
      connect_local_ranks(store, records, neighbours, rank, secret, local_listener, options, deadline, connections);
  // Every host says whether its ranks share memory; where they do not, each counts as a host of its own.
  if (size > 1) {
    if (rank == neighbours.front()) store.set("shared/" + std::to_string(rank), shared ? "1" : "0");
    std::vector<std::vector<int>> hosts;
    for (const std::vector<int>& host : members.hosts) {
      if (store.get("shared/" + std::to_string(host.front()), options.init_timeout) == "1") {
        hosts.push_back(host);
      } else {
        for (const int member : host) hosts.push_back({member});
        if (host.front() == rank) {
          log(LogLevel::kWarning, "ranks on host " + own.host_name + " cannot share memory; they use TCP instead.");
        }
      }
    }
    std::sort(hosts.begin(), hosts.end());
    members.hosts = hosts;
    members.host_index = members.host_of(rank);
    if (!shared) {
      Connections alone;
      alone.members = members;
      connect_local_ranks(store, records, {rank}, rank, secret, local_listener, options, deadline, alone);
      connections.segment = std::move(alone.segment);
      connections.eventfds = std::move(alone.eventfds);
    }
  }
  members.local_index = members.local_index_of(rank);
  if (members.hosts.size() > 1) {
    connect_remote_ranks(records, secret, listener, options, deadline, connections);
  }
  return connections;
}

}  // namespace smdp
