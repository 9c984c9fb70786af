// The ranks of a group and their hosts: facts shared by algorithms and error messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace smdp {

struct Members {
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<std::string> host_names;  // by rank
  std::vector<int> world_ranks;         // by rank, in a part of the world; empty if ranks are the world's
  std::vector<std::vector<int>> hosts;  // ranks of each host, ascending; hosts ordered by their lowest rank
  std::size_t host_index = 0;           // of this rank
  std::size_t local_index = 0;          // of this rank among hosts[host_index]
  int local_cores = 1;                  // cores that the ranks of this host may use together

  const std::vector<int>& local_ranks() const { return hosts[host_index]; }

  // Returns whether there are more ranks than cores, in which case no thread should spin.
  bool is_oversubscribed() const { return local_ranks().size() > static_cast<std::size_t>(local_cores); }

  int world_rank(int other) const { return world_ranks.empty() ? other : world_ranks[static_cast<std::size_t>(other)]; }

  // Returns "(host b)" or, in a part of the world, "(rank 5 of the world, host b)".
  std::string place(int other) const {
    const std::string world =
        world_ranks.empty() ? "" : "rank " + std::to_string(world_rank(other)) + " of the world, ";
    return "(" + world + "host " + host_names[static_cast<std::size_t>(other)] + ")";
  }

  // Returns "rank 3 (host b)" or "rank 3 of the group (rank 5 of the world, host b)".
  std::string who(int other) const {
    return "rank " + std::to_string(other) + (world_ranks.empty() ? " " : " of the group ") + place(other);
  }

  // Returns the same for each rank, separated by commas.
  std::string who(const std::vector<int>& others) const {
    std::string text;
    for (const int other : others) text += (text.empty() ? "" : ", ") + who(other);
    return text;
  }

  // Returns "[smdp] rank 3 of 8 (host b)" or "[smdp] rank 3 of 4 in group 'x' (rank 5 of the world, host b)".
  std::string tag() const {
    return "[smdp] rank " + std::to_string(rank) + " of " + std::to_string(size) +
           (world_ranks.empty() ? " " : " in group '" + name + "' ") + place(rank);
  }

  // Returns "[smdp] rank 3 of 8 (host b): ", the beginning of every message.
  std::string prefix() const { return tag() + ": "; }

  // host_of(): index of a rank's host; local_index_of(): the rank's index within that host.
  std::size_t host_of(int other) const {
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      for (const int member : hosts[host]) {
        if (member == other) return host;
      }
    }
    return hosts.size();
  }
  std::size_t local_index_of(int other) const {
    const std::vector<int>& ranks = hosts[host_of(other)];
    std::size_t index = 0;
    while (ranks[index] != other) ++index;
    return index;
  }
};

}  // namespace smdp
