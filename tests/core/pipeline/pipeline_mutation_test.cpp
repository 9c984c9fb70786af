// Random schedules are valid; each random mutation that breaks their meaning is found. Seeded: a failure names its
// round.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/schedules.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

using Random = std::mt19937_64;

int below(Random& random, std::size_t count) { return static_cast<int>(random() % count); }

// Any order that the data and the sums of gradients allow, on any placement: ranks without a stage, stages that jump
// between ranks, skip edges.
Schedule any_order(Random& random) {
  Schedule schedule;
  schedule.name = "any order";
  schedule.microbatches = 1 + below(random, 6);
  schedule.forward_only = below(random, 8) == 0;
  schedule.rows.resize(static_cast<std::size_t>(2 + below(random, 4)));
  const int stages = 2 + below(random, 6);
  for (int stage = 0; stage < stages; ++stage) schedule.rank_of.push_back(below(random, schedule.rows.size()));
  for (int target = 2; target < stages; ++target) {
    if (below(random, 4) == 0)
      schedule.skip_edges.emplace_back(below(random, static_cast<std::size_t>(target - 1)), target);
  }
  const auto cells = static_cast<std::size_t>(stages * schedule.microbatches);
  std::vector<char> forwarded(cells, 0);
  std::vector<char> gradient(cells, 0);
  std::vector<int> weights(static_cast<std::size_t>(stages), 0);  // per stage: the next microbatch to add its own
  const auto cell = [&](int stage, int i) { return static_cast<std::size_t>(stage * schedule.microbatches + i); };
  const auto may_forward = [&](int stage, int i) {
    bool is_ready = forwarded[cell(stage, i)] == 0 && (stage == 0 || forwarded[cell(stage - 1, i)] != 0);
    for (const auto& [source, target] : schedule.skip_edges) {
      if (target == stage) is_ready = is_ready && forwarded[cell(source, i)] != 0;
    }
    return is_ready;
  };
  const auto may_backward = [&](int stage, int i) {
    bool is_ready = !schedule.forward_only && forwarded[cell(stage, i)] != 0 && gradient[cell(stage, i)] == 0 &&
                    (stage + 1 == stages || gradient[cell(stage + 1, i)] != 0);
    for (const auto& [source, target] : schedule.skip_edges) {
      if (source == stage) is_ready = is_ready && gradient[cell(target, i)] != 0;
    }
    return is_ready;
  };
  for (;;) {
    std::vector<Action> ready;
    for (int stage = 0; stage < stages; ++stage) {
      for (int i = 0; i < schedule.microbatches; ++i) {
        const auto add = [&](ActionKind kind) { ready.push_back({.kind = kind, .stage = stage, .microbatch = i}); };
        if (may_forward(stage, i)) add(ActionKind::kForward);
        const bool is_next = weights[at(stage)] == i;
        if (may_backward(stage, i)) {
          add(is_next && below(random, 2) == 0 ? ActionKind::kBackward : ActionKind::kBackwardInput);
        }
        if (is_next && gradient[cell(stage, i)] != 0) add(ActionKind::kBackwardWeight);
      }
    }
    if (ready.empty()) return schedule;
    const Action action = ready[static_cast<std::size_t>(below(random, ready.size()))];
    const std::size_t place = cell(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) forwarded[place] = 1;
    if (is_input_gradient(action.kind)) gradient[place] = 1;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) ++weights[at(action.stage)];
    const int rank = schedule.rank_of[static_cast<std::size_t>(action.stage)];
    schedule.rows[static_cast<std::size_t>(rank)].push_back(action);
  }
}

const std::vector<std::string> kPayloads{"float32[4x16]", "bfloat16[4x16]", "float32[4x8]", "float32[4x16]+bool[4]"};

// Every other edge says what it carries.
Schedule with_transfers(const Schedule& schedule, Random& random) {
  std::vector<EdgePayload> payloads;
  const auto add = [&](int source, int target) {
    const auto which = static_cast<std::size_t>(below(random, 2 * kPayloads.size()));
    if (which < kPayloads.size()) payloads.push_back({source, target, kPayloads[which]});
  };
  for (int stage = 0; stage + 1 < schedule.stages(); ++stage) add(stage, stage + 1);
  for (const auto& [source, target] : schedule.skip_edges) add(source, target);
  return add_send_recv(schedule, payloads);
}

Schedule random_schedule(Random& random) {
  if (below(random, 2) == 0) return with_transfers(any_order(random), random);
  const std::vector<ScheduleInfo> names = schedule_names();
  for (;;) {
    const std::string name(names[static_cast<std::size_t>(below(random, names.size()))].name);
    const std::vector<int> virtual_stages = virtual_stages_of(name);
    const int v = virtual_stages[static_cast<std::size_t>(below(random, virtual_stages.size()))];
    const int p = 2 + below(random, 4);
    const int m = 1 + below(random, 9);
    if (!is_possible(name, p, m)) continue;
    Schedule schedule = make(name, p, m, v);
    if (below(random, 3) == 0 && schedule.stages() > 3) schedule.skip_edges = {{0, schedule.stages() - 1}};
    if (below(random, 3) == 0) schedule = add_unshard_reshard(schedule, 2 + below(random, 3));
    if (below(random, 3) == 0) schedule = add_offload(schedule, {below(random, schedule.rank_of.size())}, 1);
    if (below(random, 2) == 0) schedule = add_reduce_grad(schedule);
    if (below(random, 3) == 0) schedule = add_tied_reductions(schedule, {{0, schedule.stages() - 1}});
    if (below(random, 3) == 0) schedule = add_reduce_norm(schedule);
    return with_transfers(schedule, random);
  }
}

struct Place {
  std::size_t rank;
  std::size_t index;
};

// Where an action of this sort stands, at random.
template <typename Wanted>
std::optional<Place> find(const Schedule& schedule, Random& random, Wanted&& wanted) {
  std::vector<Place> places;
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.rows[rank].size(); ++i) {
      if (wanted(schedule.rows[rank], i)) places.push_back({rank, i});
    }
  }
  if (places.empty()) return std::nullopt;
  return places[static_cast<std::size_t>(below(random, places.size()))];
}

// What most of a row is.
bool is_work(const Action& action) {
  return (is_compute(action.kind) && action.kind != ActionKind::kOverlap) || is_transfer(action.kind);
}

// Any action; every other time one of those that are few, if there are any.
Place any_place(const Schedule& schedule, Random& random) {
  if (below(random, 2) == 0) {
    const auto place = find(schedule, random, [](const auto& row, std::size_t i) { return !is_work(row[i]); });
    if (place) return *place;
  }
  return *find(schedule, random, [](const auto&, std::size_t) { return true; });
}

ActionKind reversed(ActionKind kind) {
  switch (kind) {
    case ActionKind::kSendForward:
      return ActionKind::kRecvForward;
    case ActionKind::kRecvForward:
      return ActionKind::kSendForward;
    case ActionKind::kSendBackward:
      return ActionKind::kRecvBackward;
    default:
      return ActionKind::kSendBackward;
  }
}

// The later one uses what the earlier one makes.
bool depends(const Action& later, const Action& earlier) {
  bool is_found = false;
  for_each_part(later, [&](const Action& use) {
    for_each_part(earlier, [&](const Action& made) {
      if (use.kind == ActionKind::kReduceNorm) {
        is_found = is_found || made.kind == ActionKind::kBackward || made.kind == ActionKind::kBackwardWeight ||
                   made.kind == ActionKind::kReduceGrad || made.kind == ActionKind::kReduceTied;
      }
      if (use.stage != made.stage) return;
      const bool is_reduced = (use.kind == ActionKind::kReduceGrad || use.kind == ActionKind::kReduceTied) &&
                              (made.kind == ActionKind::kBackward || made.kind == ActionKind::kBackwardWeight);
      const bool is_whole = is_compute(use.kind) && made.kind == ActionKind::kUnshard;
      const bool is_used = use.kind == ActionKind::kReshard && is_compute(made.kind);
      is_found = is_found || is_reduced || is_whole || is_used;
      if (use.microbatch != made.microbatch) return;
      const bool is_moved = (use.kind == ActionKind::kOffload && made.kind == ActionKind::kForward) ||
                            (use.kind == ActionKind::kReload && made.kind == ActionKind::kOffload) ||
                            (is_input_gradient(use.kind) && made.kind == ActionKind::kReload);
      const bool is_input = use.kind == ActionKind::kForward && made.kind == ActionKind::kRecvForward;
      const bool is_gradient =
          is_input_gradient(use.kind) && (made.kind == ActionKind::kForward || made.kind == ActionKind::kRecvBackward);
      const bool is_weight = use.kind == ActionKind::kBackwardWeight && made.kind == ActionKind::kBackwardInput;
      const bool is_sent = (use.kind == ActionKind::kSendForward && made.kind == ActionKind::kForward) ||
                           (use.kind == ActionKind::kSendBackward && is_input_gradient(made.kind));
      is_found = is_found || is_moved || is_input || is_gradient || is_weight || is_sent;
    });
  });
  return is_found;
}

// Returns the mutation's name, or empty if the schedule has no place for it. `touched`: kinds of what it moved.
std::string mutate(Schedule& schedule, Random& random, std::set<ActionKind>& touched) {
  auto& rows = schedule.rows;
  switch (below(random, 7)) {
    case 0: {
      const Place place = any_place(schedule, random);
      auto& row = rows[place.rank];
      touched.insert(row[place.index].kind);
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(place.index));
      return "drop";
    }
    case 1: {
      const Place place = any_place(schedule, random);
      auto& row = rows[place.rank];
      const Action copy = row[place.index];
      touched.insert(copy.kind);
      row.insert(row.begin() + below(random, row.size() + 1), copy);
      return "duplicate";
    }
    case 2: {
      // Anywhere in a row, two actions of which the later one needs the earlier one.
      const bool wants_few = below(random, 2) == 0;
      const auto place = find(schedule, random, [&](const auto& row, std::size_t i) {
        if (wants_few && is_work(row[i])) return false;
        for (std::size_t before = 0; before < i; ++before) {
          if (depends(row[i], row[before])) return true;
        }
        return false;
      });
      if (!place) return "";
      auto& row = rows[place->rank];
      std::vector<std::size_t> all;
      for (std::size_t before = 0; before < place->index; ++before) {
        if (depends(row[place->index], row[before])) all.push_back(before);
      }
      const std::size_t earlier = all[static_cast<std::size_t>(below(random, all.size()))];
      touched.insert({row[place->index].kind, row[earlier].kind});
      std::swap(row[place->index], row[earlier]);
      return "swap across a dependency";
    }
    case 3: {
      const auto place =
          find(schedule, random, [](const auto& row, std::size_t i) { return is_transfer(row[i].kind); });
      if (!place) return "";
      Action& action = rows[place->rank][place->index];
      const int other = below(random, rows.size());
      if (other == action.peer) return "";
      action.peer = other;
      return "wrong peer";
    }
    case 4: {
      const auto place =
          find(schedule, random, [](const auto& row, std::size_t i) { return is_transfer(row[i].kind); });
      if (!place) return "";
      Action& action = rows[place->rank][place->index];
      action.kind = reversed(action.kind);
      return "send for receive";
    }
    case 5: {
      const auto place =
          find(schedule, random, [](const auto& row, std::size_t i) { return is_transfer(row[i].kind); });
      if (!place) return "";
      Action& action = rows[place->rank][place->index];
      const std::string& other = kPayloads[static_cast<std::size_t>(below(random, kPayloads.size()))];
      if (payload_of(schedule, action) == other) return "";
      action.payload = static_cast<std::int16_t>(schedule.payloads.size());
      schedule.payloads.push_back(other);
      return "wrong payload";
    }
    default: {
      // A send and a receive with the same peer, one after the other: the peer has them in the same order.
      const auto place = find(schedule, random, [](const auto& row, std::size_t i) {
        return i + 1 < row.size() && is_transfer(row[i].kind) && is_transfer(row[i + 1].kind) &&
               is_send(row[i].kind) != is_send(row[i + 1].kind) && row[i].peer == row[i + 1].peer;
      });
      if (!place) return "";
      auto& row = rows[place->rank];
      std::swap(row[place->index], row[place->index + 1]);
      return "reversed send and receive";
    }
  }
}

TEST(Mutation, EveryOneIsFoundAndNoValidScheduleIsRefused) {
  const char* text = std::getenv("SMDP_FUZZ_ROUNDS");
  const int rounds = std::max(10'000, text == nullptr ? 0 : std::atoi(text));
  int mutations = 0;
  std::map<std::string, std::set<ActionKind>> touched;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Random random(static_cast<std::uint64_t>(round));
    Schedule schedule = random_schedule(random);
    const auto refused = verify(schedule);
    ASSERT_FALSE(refused) << refused->message;
    std::set<ActionKind> kinds;
    const std::string mutation = mutate(schedule, random, kinds);
    if (mutation.empty()) continue;
    touched[mutation].merge(kinds);
    ++mutations;
    const auto found = verify(schedule);
    ASSERT_TRUE(found) << mutation << " of\n" << to_json(schedule);
    if (mutation == "wrong payload") {
      ASSERT_EQ(found->check, Check::kMatching) << found->message;
    }
  }
  EXPECT_GT(mutations, rounds * 2 / 3);
  for (int kind = 0; kind <= static_cast<int>(ActionKind::kReduceNorm); ++kind) {
    const auto one = static_cast<ActionKind>(kind);
    for (const char* mutation : {"drop", "duplicate", "swap across a dependency"}) {
      EXPECT_TRUE(touched[mutation].contains(one)) << mutation << " of " << name_of(one);
    }
  }
}

}  // namespace
}  // namespace smdp::pipeline
