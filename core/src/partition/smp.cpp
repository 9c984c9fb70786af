#include "partition/smp.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace smdp::partition {
namespace {

using Indices = std::vector<std::size_t>;

struct Node {
  double cost = 0;   // of its own units and all below
  Indices units;     // units that are this module itself
  Indices children;  // in execution order
};

// Units that share parameters, directly or indirectly, form one node. Returns the first unit of each unit's node.
Indices first_of_node(const Problem& problem) {
  Indices first(problem.units.size());
  std::iota(first.begin(), first.end(), 0);
  for (bool is_changed = true; is_changed;) {
    is_changed = false;
    for (const Tied& group : problem.tied) {
      std::size_t least = first.size();
      for (const std::size_t unit : group.units) least = std::min(least, first[unit]);
      for (const std::size_t unit : group.units) is_changed |= std::exchange(first[unit], least) != least;
    }
  }
  return first;
}

// The tree of modules: root first, parents before children.
class Tree {
 public:
  explicit Tree(const Problem& problem) {
    nodes_.emplace_back();
    const std::vector<double> costs = costs_of(problem);
    for (std::size_t unit = 0; unit < problem.units.size(); ++unit) {
      std::size_t at = 0;
      nodes_[at].cost += costs[unit];
      const std::string& name = problem.units[unit].name;
      for (std::size_t dot = name.find('.');; dot = name.find('.', dot + 1)) {
        at = child_of(at, name.substr(0, dot));
        nodes_[at].cost += costs[unit];
        if (dot == std::string::npos) break;
      }
      nodes_[at].units.push_back(unit);
    }
  }

  const Node& operator[](std::size_t index) const { return nodes_[index]; }

 private:
  // w bytes / all bytes + (1 - w) seconds / all seconds. Units that share parameters are one node, whose cost belongs
  // to its first unit.
  static std::vector<double> costs_of(const Problem& problem) {
    std::vector<double> bytes;
    std::vector<double> seconds;
    double all_bytes = 0;
    double all_seconds = 0;
    for (const Unit& unit : problem.units) {
      bytes.push_back(unit.parameter_bytes + unit.activation_bytes);
      seconds.push_back(unit.forward + unit.backward_input + unit.backward_weight);
      all_bytes += bytes.back();
      all_seconds += seconds.back();
    }
    for (const Tied& group : problem.tied) {
      for (std::size_t i = 1; i < group.units.size(); ++i) {
        bytes[group.units[i]] -= group.bytes;
        all_bytes -= group.bytes;
      }
    }
    std::vector<double> costs;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const double share_of_bytes = all_bytes > 0 ? bytes[i] / all_bytes : 0;
      const double share_of_seconds = all_seconds > 0 ? seconds[i] / all_seconds : 0;
      costs.push_back(problem.memory_weight * share_of_bytes + (1 - problem.memory_weight) * share_of_seconds);
    }
    const Indices first = first_of_node(problem);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      if (first[i] != i) costs[first[i]] += std::exchange(costs[i], 0);
    }
    return costs;
  }

  std::size_t child_of(std::size_t parent, const std::string& path) {
    const auto [found, is_new] = index_.try_emplace(path, nodes_.size());
    if (is_new) {
      nodes_.emplace_back();
      nodes_[parent].children.push_back(found->second);
    }
    return found->second;
  }

  std::vector<Node> nodes_;
  std::map<std::string, std::size_t> index_;
};

// Returns the ends of the contiguous segments with the smallest maximum cost; at most as many segments as costs.
Indices least_maximum(const std::vector<double>& costs, std::size_t segments) {
  const std::size_t count = costs.size();
  std::vector<double> sums(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) sums[i + 1] = sums[i] + costs[i];
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(segments + 1, std::vector<double>(count + 1, kNone));
  std::vector<Indices> begin_of(segments + 1, Indices(count + 1, 0));
  least[0][0] = 0;
  for (std::size_t used = 1; used <= segments; ++used) {
    for (std::size_t end = used; end <= count; ++end) {
      for (std::size_t begin = used - 1; begin < end; ++begin) {
        const double most = std::max(least[used - 1][begin], sums[end] - sums[begin]);
        if (most < least[used][end]) {
          least[used][end] = most;
          begin_of[used][end] = begin;
        }
      }
    }
  }
  Indices ends(segments);
  for (std::size_t used = segments, end = count; used > 0; end = begin_of[used--][end]) ends[used - 1] = end;
  return ends;
}

// Returns how many devices each segment gets: one after the other, to the largest cost / (given + 1).
Indices hondt(const std::vector<double>& costs, std::size_t devices) {
  Indices given(costs.size(), 0);
  for (; devices > 0; --devices) {
    std::size_t best = 0;
    const auto quotient = [&](std::size_t i) { return costs[i] / static_cast<double>(given[i] + 1); };
    for (std::size_t i = 1; i < costs.size(); ++i) {
      if (quotient(i) > quotient(best)) best = i;
    }
    ++given[best];
  }
  return given;
}

// Places modules on ranks, beginning with the tree's root.
class Placing {
 public:
  Placing(const Tree& tree, std::size_t units) : tree_(tree), rank_of_(units, 0) {}

  std::vector<int> run(std::vector<int> ranks) {
    place(0, ranks);
    return std::move(rank_of_);
  }

 private:
  // Modules nest as deep as names have dots, and a list of modules is cut once more per level.
  void place(std::size_t node, std::span<const int> ranks) {
    for (const std::size_t unit : tree_[node].units) rank_of_[unit] = ranks.front();
    distribute(tree_[node].children, ranks);
  }

  void distribute(std::span<const std::size_t> modules, std::span<const int> ranks) {
    if (modules.empty()) return;
    if (ranks.size() == 1 || modules.size() == 1) {
      for (const std::size_t module : modules) place(module, ranks);
      return;
    }
    std::vector<double> costs;
    for (const std::size_t module : modules) costs.push_back(tree_[module].cost);
    const Indices ends = least_maximum(costs, std::min(modules.size(), ranks.size()));
    std::vector<double> segments;
    for (std::size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++]) {
      double sum = 0;
      for (std::size_t module = begin; module < ends[i]; ++module) sum += costs[module];
      segments.push_back(sum);
    }
    const Indices given = hondt(segments, ranks.size());
    std::size_t used = 0;
    for (std::size_t i = 0, begin = 0; i < ends.size(); begin = ends[i++]) {
      const auto own = given[i] == 0 ? ranks.first(1) : ranks.subspan(used, given[i]);
      distribute(modules.subspan(begin, ends[i] - begin), own);
      used += given[i];
    }
  }

  const Tree& tree_;
  std::vector<int> rank_of_;
};

}  // namespace

std::vector<int> smp_assignment(const Problem& problem) {
  std::vector<int> ranks;
  for (int rank = 0; rank < problem.ranks; ++rank) ranks.push_back(rank);
  const Tree tree(problem);
  std::vector<int> assigned = Placing(tree, problem.units.size()).run(std::move(ranks));
  const Indices first = first_of_node(problem);
  for (std::size_t unit = 0; unit < assigned.size(); ++unit) assigned[unit] = assigned[first[unit]];
  return assigned;
}

}  // namespace smdp::partition
