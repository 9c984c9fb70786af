// What an algorithm of a group works with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/task.h"
#include "transport/members.h"
#include "transport/transport.h"

namespace smdp {

struct Context {
  const Members& members;
  Board& board;                               // the ranks on this host
  std::vector<std::unique_ptr<Link>>& links;  // by rank; empty for ranks on this host
  const char* algorithm = "";                 // of the current operation; a literal, for counters and traces
  std::size_t streams = std::numeric_limits<std::size_t>::max();  // that it may use to each peer

  bool is_single_host() const { return members.hosts.size() == 1; }

  void send(int peer, std::uint64_t slot, const std::byte* data, std::size_t size, Link::Pending& pending) {
    links[static_cast<std::size_t>(peer)]->send(slot, data, size, pending, streams);
  }
  void receive(int peer, std::uint64_t slot, std::byte* data, std::size_t size, Link::Pending& pending) {
    links[static_cast<std::size_t>(peer)]->receive(slot, data, size, pending);
  }
};

// Suspends until every message counted in `pending` has ended. If that takes too long, the error names `peer`.
inline auto settled(int peer, const Link::Pending& pending) {
  return until(peer, [&pending] { return pending == 0; });
}

}  // namespace smdp
