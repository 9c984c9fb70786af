// Positions of transfers. All computations are put on one clock. A value travels at the moment its producer ends, and
// its SEND and RECV enter both rows at that moment. Both rows thereby follow one global order of all transfers, in
// which both ranks of the first unfinished one are ready, so no transport can deadlock.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "common/argument.h"
#include "common/counted.h"
#include "pipeline/data_edges.h"
#include "pipeline/lowering/require.h"
#include "pipeline/payload.h"
#include "pipeline/replay.h"
#include "smdp/pipeline/lowering.h"

namespace smdp::pipeline {
namespace {

struct Moment {
  bool is_start = true;  // of the action; otherwise its end
  int rank = 0;
  int index = 0;
};

class Placer {
 public:
  Placer(const Schedule& schedule, const DataEdges& edges, const std::vector<EdgePayload>& payloads)
      : schedule_(schedule), edges_(edges), result_(schedule), payloads_(at(edges.count()), -1) {
    for (auto& row : result_.rows) row.clear();
    PayloadTable table(result_);
    for (const EdgePayload& one : payloads) {
      const int edge = edges.between(one.source, one.target);
      if (edge < 0 || payloads_[at(edge)] >= 0) {
        refuse("payload of stages", std::to_string(one.source) + " -> " + std::to_string(one.target),
               "a stage and the next one, or a skip edge, each once");
      }
      payloads_[at(edge)] = table.place_of(one.payload);
    }
  }

  Schedule run(const Replay& played) {
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      result_.rows[at(rank)].reserve(3 * schedule_.rows[at(rank)].size());
    }
    for (const Moment& moment : in_order(played)) {
      const Action& action = schedule_.rows[at(moment.rank)][at(moment.index)];
      if (moment.is_start) {
        result_.rows[at(moment.rank)].push_back(action);
      } else {
        for_each_part(action, [&](const Action& part) { send(part, moment.rank); });
      }
    }
    return std::move(result_);
  }

 private:
  // Ends come before starts: a value travels before any rank continues. Times are whole numbers, because every
  // computation takes 1, 2 or, as a pair, 3; one bucket per time therefore sorts faster than comparing.
  std::vector<Moment> in_order(const Replay& played) const {
    const auto bucket = [](double time, bool is_start) {
      return 2 * static_cast<std::size_t>(time) + (is_start ? 1 : 0);
    };
    std::vector<std::size_t> begin;
    const auto for_each_moment = [&](auto&& visit) {
      for (int rank = 0; rank < schedule_.ranks(); ++rank) {
        const auto& row = schedule_.rows[at(rank)];
        for (int index = 0; index < static_cast<int>(row.size()); ++index) {
          const Interval& times = played.timeline[at(rank)][at(index)];
          visit(bucket(times.start, true), Moment{true, rank, index});
          const ActionKind kind = row[at(index)].kind;
          if (is_compute(kind) && kind != ActionKind::kBackwardWeight) {
            visit(bucket(times.end, false), Moment{false, rank, index});
          }
        }
      }
    };
    for_each_moment([&](std::size_t place, const Moment&) {
      if (place + 2 > begin.size()) begin.resize(place + 2, 0);
      ++begin[place + 1];
    });
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<Moment> moments(begin.empty() ? 0 : begin.back());
    for_each_moment([&](std::size_t place, const Moment& moment) { moments[begin[place]++] = moment; });
    return moments;
  }

  void send(const Action& action, int rank) {
    if (action.kind == ActionKind::kForward) {
      for (const int edge : edges_.out(action.stage)) {
        transfer(ActionKind::kSendForward, ActionKind::kRecvForward, action, edge, edges_.target(edge), rank);
      }
    } else if (is_input_gradient(action.kind)) {
      for (const int edge : edges_.in(action.stage)) {
        transfer(ActionKind::kSendBackward, ActionKind::kRecvBackward, action, edge, edges_.source(edge), rank);
      }
    }
  }

  void transfer(ActionKind send, ActionKind receive, const Action& producer, int edge, int consumer, int rank) {
    const int to = schedule_.rank_of[at(consumer)];
    if (to == rank) return;
    const std::int16_t payload = payloads_[at(edge)];
    result_.rows[at(rank)].push_back({.kind = send,
                                      .payload = payload,
                                      .stage = producer.stage,
                                      .microbatch = producer.microbatch,
                                      .other_stage = consumer,
                                      .peer = to});
    result_.rows[at(to)].push_back({.kind = receive,
                                    .payload = payload,
                                    .stage = consumer,
                                    .microbatch = producer.microbatch,
                                    .other_stage = producer.stage,
                                    .peer = rank});
  }

  const Schedule& schedule_;
  const DataEdges& edges_;
  Schedule result_;
  std::vector<std::int16_t> payloads_;  // by edge
};

void require_plain(const Schedule& schedule) {
  require_without(schedule, "add_send_recv", "transfers", is_transfer);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Action& action : schedule.rows[at(rank)]) {
      for_each_part(action, [&](const Action& part) {
        if (!is_compute(part.kind) || is_in_range(schedule, part)) return;
        throw InvalidArgument("[smdp] add_send_recv: rank " + std::to_string(rank) + " has " + to_text(part) +
                              ", which is out of range: the schedule has " +
                              counted(static_cast<std::uint64_t>(schedule.stages()), "virtual stage") + " and " +
                              counted(static_cast<std::uint64_t>(schedule.microbatches), "microbatch") + ".");
      });
    }
  }
}

}  // namespace

Schedule add_send_recv(const Schedule& schedule, const std::vector<EdgePayload>& payloads) {
  check_shape(schedule);
  require_plain(schedule);
  const DataEdges edges(schedule);
  const Replay played = replay(schedule, edges, uniform_costs(schedule.stages()), ReplayMode::kOrderOnly);
  if (!played.stuck.empty()) {
    throw InvalidArgument("[smdp] add_send_recv: schedule '" + shown(schedule.name) +
                          "' has no valid order: " + explain(schedule, played.stuck) + ".");
  }
  return Placer(schedule, edges, payloads).run(played);
}

}  // namespace smdp::pipeline
