// Every value that goes to another rank has one send and one receive, which name each other's ranks, and both sides of
// a channel (all transfers from one rank to another) have them in the same order. Source, target, stage, direction and
// microbatch are the tag. If one side gives dtypes and shapes, the other must give the same.
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/argument.h"
#include "pipeline/checks/checks.h"
#include "pipeline/payload.h"

namespace smdp::pipeline {
namespace {

struct Place {
  int rank;
  int index;
};

struct Channel {
  std::vector<Place> sends;
  std::vector<Place> receives;
};

const Action& action_at(const Schedule& schedule, const Place& place) {
  return schedule.rows[at(place.rank)][at(place.index)];
}

// Returns the receive that belongs to a send.
Action receive_of(const Action& send, int rank) {
  return {.kind = send.kind == ActionKind::kSendForward ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
          .payload = send.payload,
          .stage = send.other_stage,
          .microbatch = send.microbatch,
          .other_stage = send.stage,
          .peer = rank};
}

Found check_payloads(const Schedule& schedule, const Action& send, const Place& receive) {
  const std::string_view sent = payload_of(schedule, send);
  const std::string_view received = payload_of(schedule, action_at(schedule, receive));
  if (sent == received) return std::nullopt;
  const auto named = [](std::string_view payload) {
    return payload.empty() ? std::string("an unknown payload") : shown(payload, 200);
  };
  return violation_at(Check::kMatching, schedule, receive.rank, receive.index,
                      "it receives " + named(received) + " where " + to_text(send) + " of rank " +
                          std::to_string(action_at(schedule, receive).peer) + " sends " + named(sent) + ": " +
                          difference_of(sent, received));
}

// Checks that every value that goes to another rank is sent.
Found check_all_sent(const Schedule& schedule, const DataEdges& edges) {
  const auto microbatches = at(schedule.microbatches);
  std::vector<char> sent_forward(at(edges.count()) * microbatches, 0);
  std::vector<char> sent_backward(sent_forward.size(), 0);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const Action& action = row[at(index)];
      if (!is_send(action.kind)) continue;
      auto& sent = action.kind == ActionKind::kSendForward ? sent_forward : sent_backward;
      char& cell = sent[at(edges.of(action)) * microbatches + at(action.microbatch)];
      if (cell != 0) return violation_at(Check::kMatching, schedule, rank, index, "it is sent twice");
      cell = 1;
    }
  }
  for (int edge = 0; edge < edges.count(); ++edge) {
    const int source = edges.source(edge);
    const int target = edges.target(edge);
    const int from = schedule.rank_of[at(source)];
    const int to = schedule.rank_of[at(target)];
    if (from == to) continue;
    for (int i = 0; i < schedule.microbatches; ++i) {
      if (sent_forward[at(edge) * microbatches + at(i)] == 0) {
        return violation_of(
            Check::kMatching, schedule, from,
            {.kind = ActionKind::kSendForward, .stage = source, .microbatch = i, .other_stage = target, .peer = to},
            "no row contains it");
      }
      if (!schedule.forward_only && sent_backward[at(edge) * microbatches + at(i)] == 0) {
        return violation_of(
            Check::kMatching, schedule, to,
            {.kind = ActionKind::kSendBackward, .stage = target, .microbatch = i, .other_stage = source, .peer = from},
            "no row contains it");
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Found check_matching(const Schedule& schedule, const DataEdges& edges) {
  if (!has_transfers(schedule)) return std::nullopt;
  std::map<std::pair<int, int>, Channel> channels;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[at(rank)];
    Channel* channel = nullptr;
    std::pair<int, int> ends{-1, -1};
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const Action& action = row[at(index)];
      if (!is_transfer(action.kind)) continue;
      if (!is_in_range(schedule, action) || edges.of(action) < 0) {
        return violation_at(Check::kMatching, schedule, rank, index,
                            "no value goes between stages " + std::to_string(action.stage) + " and " +
                                std::to_string(action.other_stage) + " in this direction");
      }
      const int home = schedule.rank_of[at(action.other_stage)];
      if (action.peer != home) {
        return violation_at(Check::kMatching, schedule, rank, index,
                            "its peer is rank " + std::to_string(action.peer) + ", but stage " +
                                std::to_string(action.other_stage) + " is on rank " + std::to_string(home));
      }
      if (home == rank) {
        return violation_at(Check::kMatching, schedule, rank, index,
                            "both stages are on this rank, so there is nothing to transfer");
      }
      const std::pair<int, int> now = is_send(action.kind) ? std::pair(rank, home) : std::pair(home, rank);
      if (now != ends || channel == nullptr) {
        ends = now;
        channel = &channels[now];
      }
      (is_send(action.kind) ? channel->sends : channel->receives).push_back({rank, index});
    }
  }
  for (const auto& [ends, channel] : channels) {
    const std::string name = "the channel from rank " + std::to_string(ends.first) + " to rank " +
                             std::to_string(ends.second) + " has " + std::to_string(channel.sends.size()) +
                             " sends and " + std::to_string(channel.receives.size()) + " receives";
    for (std::size_t i = 0; i < channel.sends.size() || i < channel.receives.size(); ++i) {
      if (i >= channel.receives.size()) {
        const Place& place = channel.sends[i];
        return violation_at(Check::kMatching, schedule, place.rank, place.index, name + "; this one is never received");
      }
      const Place& receive = channel.receives[i];
      if (i >= channel.sends.size()) {
        return violation_at(Check::kMatching, schedule, receive.rank, receive.index, name + "; this one is never sent");
      }
      const Action& send = action_at(schedule, channel.sends[i]);
      Action expected = receive_of(send, ends.first);
      if (expected == action_at(schedule, receive)) continue;
      expected.payload = action_at(schedule, receive).payload;
      if (expected == action_at(schedule, receive)) {
        if (Found found = check_payloads(schedule, send, receive)) return found;
        continue;
      }
      return violation_at(Check::kMatching, schedule, receive.rank, receive.index,
                          "receive " + std::to_string(i) + " of rank " + std::to_string(ends.second) + " from rank " +
                              std::to_string(ends.first) + " is matched with " + to_text(send) + ", which belongs to " +
                              to_text(expected));
    }
  }
  return check_all_sent(schedule, edges);
}

}  // namespace smdp::pipeline
