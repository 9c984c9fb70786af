// Shared parts of the CSV and JSON readers.
#pragma once

#include <string>
#include <string_view>

#include "common/argument.h"
#include "pipeline/payload.h"
#include "pipeline/trim.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// Returns the message of an inner error, to be placed after the position where it was found.
inline std::string without_tag(std::string_view message) {
  constexpr std::string_view kTag = "[smdp] ";
  return std::string(message.substr(0, kTag.size()) == kTag ? message.substr(kTag.size()) : message);
}

// Reads an action and, after a colon, its payload.
inline Action read_action(std::string_view text, PayloadTable& payloads) {
  const std::size_t colon = text.find(':');
  Action action = parse_action(text.substr(0, colon));
  if (colon == std::string_view::npos) return action;
  if (!is_transfer(action.kind)) {
    throw InvalidArgument("[smdp] '" + shown(text) + "' is not an action: only sends and receives have a payload.");
  }
  action.payload = payloads.place_of(trim(text.substr(colon + 1)));
  return action;
}

// Sets the peer of each transfer that names none to the rank of the stage at its other end.
inline void set_peers(Schedule& schedule) {
  for (auto& row : schedule.rows) {
    for (Action& action : row) {
      if (!is_transfer(action.kind) || action.peer >= 0) continue;
      if (action.other_stage < 0 || action.other_stage >= schedule.stages()) continue;
      action.peer = schedule.rank_of[static_cast<std::size_t>(action.other_stage)];
    }
  }
}

}  // namespace smdp::pipeline
