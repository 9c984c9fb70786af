#include "collectives/engine/collective.h"

#include <algorithm>

namespace smdp {

std::string Collective::describe() const { return fingerprint.describe() + (label ? " (" + label() + ")" : ""); }

int Collective::awaited() const {
  int peer = -1;
  for (const Scheduler::Wait& wait : scheduler.waits()) peer = std::max(peer, wait.peer);
  return peer;
}

void Collective::set_looks(std::chrono::milliseconds stall_time) {
  next_inquiry = std::min(since + kEarlyInquiry, final_inquiry());
  next_stall = stall_time.count() == 0 ? Clock::time_point::max() : since + stall_time;
}

Clock::time_point Collective::final_inquiry() const {
  return deadline - std::min<std::chrono::milliseconds>(kAnswer, timeout / 2);
}

}  // namespace smdp
