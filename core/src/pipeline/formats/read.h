// What the readers of CSV and JSON share.
#pragma once

#include <string>
#include <string_view>

#include "common/argument.h"
#include "pipeline/payload.h"
#include "pipeline/trim.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// The message of an inner error, to be put behind the place at which it was found.
inline std::string without_tag(std::string_view message) {
  constexpr std::string_view kTag = "[smdp] ";
  return std::string(message.substr(0, kTag.size()) == kTag ? message.substr(kTag.size()) : message);
}

// An action and, after a colon, what it carries.
inline Action read_action(std::string_view text, PayloadTable& payloads) {
  const std::size_t colon = text.find(':');
  Action action = parse_action(text.substr(0, colon));
  if (colon == std::string_view::npos) return action;
  if (!is_transfer(action.kind)) {
    throw InvalidArgument("[smdp] '" + shown(text) + "' is no action: only a send or a receive has a payload.");
  }
  action.payload = payloads.place_of(trim(text.substr(colon + 1)));
  return action;
}

// Gives each transfer that names no peer the rank of the stage at its other end.
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
