// Finds out which ranks are late to a collective, and what they wait for instead.
//
// Locks: mutex_ guards the last answer; nothing is called under it. Takes the locks of CallQueue and Failures, also
// those of other groups, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "collectives/engine/call_queue.h"
#include "collectives/engine/failures.h"
#include "collectives/engine/group_thread.h"
#include "common/mutex.h"
#include "common/thread_wait.h"
#include "transport/control.h"
#include "transport/members.h"

namespace smdp {

class Diagnosis {
 public:
  // Makes rank 0 ask all ranks, see Control::inquire(). Progress thread.
  using Ask = std::function<void(std::uint64_t sequence, std::function<void(const Control::Verdict&)> answer)>;

  Diagnosis(const Members& members, std::chrono::milliseconds stall_time, const CallQueue& queue,
            const Failures& failures, const GroupThread& thread, Ask ask);

  // Called by the driving thread, like check_late(). check() inquires about an operation that waits for others, and
  // logs one that has waited long. check_late() logs one whose values are still on this rank's device.
  void check(Collective& collective, Clock::time_point now);
  void check_late(Collective& collective, Clock::time_point now);

  // Any thread, from here on. Asks which ranks are behind collective `sequence`; 0: only which ranks do not answer.
  void inquire(std::uint64_t sequence) SMDP_EXCLUDES(mutex_);
  // Returns what the last answer says about a wait for `peer`; -1: for all. undone: what `peer` has not done yet.
  std::string verdict_for(int peer, const char* undone = "has not sent its part") const SMDP_EXCLUDES(mutex_);
  // Makes rank 0 ask all ranks what they wait for, even if no operation is running here.
  void look_for_deadlock();

  // Returns this rank's answer to an inquiry.
  Control::Status status();
  // Returns where `operation` is, if it is one of the group's collectives that have not ended, and the last answer
  // about it.
  std::optional<Control::OtherWait> place_of(const Operation* operation) const SMDP_EXCLUDES(mutex_);
  // Fails the group in which the thread that calls this group's collectives waits, if that is a different group.
  void fail_other_groups(const Failure& failure);

 private:
  void check_inquiry(Collective& collective, Clock::time_point now);
  void check_stall(Collective& collective, Clock::time_point now);
  // Returns what the thread that calls this group's collectives waits for in other groups.
  Control::OtherWait other_wait(const std::optional<ThreadWait>& wait);

  const Members& members_;
  const std::chrono::milliseconds stall_time_;
  const CallQueue& queue_;
  const Failures& failures_;
  const GroupThread& thread_;
  const Ask ask_;

  mutable Mutex mutex_;
  Control::Verdict verdict_ SMDP_GUARDED_BY(mutex_);    // the last answer
  std::uint64_t inquired_ SMDP_GUARDED_BY(mutex_) = 0;  // the collective that verdict_ is about
  std::optional<Clock::time_point> unanswered_since_ SMDP_GUARDED_BY(mutex_);
};

}  // namespace smdp
