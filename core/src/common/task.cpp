#include "common/task.h"

namespace smdp {

bool Scheduler::poll() {
  bool resumed = false;
  burst_ = 0;
  std::size_t i = 0;
  // As many checks as there are waits now: one that is added meanwhile may have to wait for the next poll().
  for (std::size_t looks = waits_.size(); looks != 0 && i < waits_.size(); --looks) {
    bool ready = error_ != nullptr;
    if (!ready) {
      try {
        ready = waits_[i].ready(waits_[i].argument);
      } catch (...) {
        fail(std::current_exception());
        ready = true;
      }
    }
    if (!ready) {
      ++i;
      continue;
    }
    const std::coroutine_handle<> handle = waits_[i].handle;
    waits_[i] = waits_.back();
    waits_.pop_back();
    handle.resume();
    resumed = true;
  }
  return resumed;
}

}  // namespace smdp
