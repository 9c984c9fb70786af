// Who is late to a collective, and what it waits for instead.
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
  // Has rank 0 ask all ranks, see Control::inquire(). Progress thread.
  using Ask = std::function<void(std::uint64_t sequence, std::function<void(const Control::Verdict&)> answer)>;

  Diagnosis(const Members& members, std::chrono::milliseconds stall_time, const CallQueue& queue,
            const Failures& failures, const GroupThread& thread, Ask ask);

  // Whoever drives, both: asks about an operation that waits for others, and logs one that does so for long. Logs one
  // whose values have not left this rank's device.
  void check(Collective& collective, Clock::time_point now);
  void check_late(Collective& collective, Clock::time_point now);

  // Any thread, from here on. Asks who is behind collective `sequence`; 0: only who does not answer.
  void inquire(std::uint64_t sequence) SMDP_EXCLUDES(mutex_);
  // What the last answer says of a wait for `peer`; -1: for all. undone: what is awaited of it.
  std::string verdict_for(int peer, const char* undone = "has not sent its part") const SMDP_EXCLUDES(mutex_);
  // Has rank 0 ask all ranks what they wait for, though nothing need be under way here.
  void look_for_deadlock();

  // What this rank answers when it is asked.
  Control::Status status();
  // What it is in, if `operation` is one of its collectives that has not ended, and the last answer of an inquiry.
  std::optional<Control::OtherWait> place_of(const Operation* operation) const SMDP_EXCLUDES(mutex_);
  // Fails the group in which the thread waits that calls this group's collectives, if it is another one.
  void fail_other_groups(const Failure& failure);

 private:
  void check_inquiry(Collective& collective, Clock::time_point now);
  void check_stall(Collective& collective, Clock::time_point now);
  // Of the thread that calls this group's collectives, in other groups.
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
