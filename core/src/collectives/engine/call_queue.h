// The collectives that a rank has called and that have not ended, in the order in which all ranks run them, and which
// thread drives: the caller whose operation it is, or the progress thread.
//
// Calls by name come in rank 0's order, see call_queue_by_name.cpp.
//
// Locks: mutex_ is taken before that of Failures, of an operation, and of thread_wait.cpp. Of callbacks only is_open
// and label run under it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/engine/collective.h"
#include "collectives/engine/failures.h"
#include "common/mutex.h"
#include "common/thread_wait.h"
#include "smdp/group.h"
#include "transport/control.h"
#include "transport/members.h"

namespace smdp {

class CallQueue {
 public:
  // Its order of calls by name is that of all ranks.
  static constexpr int kOrderingRank = 0;

  // A queued operation whose time is over.
  struct Overdue {
    Fingerprint operation;
    std::function<std::string()> label;
    std::chrono::milliseconds timeout;
    std::string reason;  // empty: it waits for the end of the one under way
  };
  // What check() has found.
  struct Lateness {
    Fingerprint running;               // the operation under way, or the last
    bool is_inquiry_due = false;       // about that one
    std::vector<std::string> stalled;  // what to log
    std::optional<Overdue> overdue;
  };
  // Where a thread waits that waits for an operation.
  struct Place {
    Fingerprint operation;    // sequence 0: not known yet
    std::uint64_t under_way;  // number of the one under way
  };

  CallQueue(const Members& members, const GroupOptions& options, const Failures& failures)
      : members_(members), options_(options), failures_(failures) {}

  // Called by a caller. Begins the collective and returns it: this thread drives it, then calls leave(). Or queues it
  // for the progress thread and returns null, if it must be queued or cannot begin at once. Throws the group's error, a
  // MismatchError if another call by its name is under way, or an Error in a signal handler that interrupts a caller.
  std::unique_ptr<Collective> enter(std::unique_ptr<Collective> collective, bool must_queue) SMDP_EXCLUDES(mutex_);
  // Such a caller drives no more. True if others are queued.
  bool leave(Clock::time_point end) SMDP_EXCLUDES(mutex_);
  // Until no other thread's call is driven by its caller.
  void await_idle() SMDP_EXCLUDES(mutex_);

  // Progress thread. Begins the next operation; null if there is none, or a caller drives.
  std::unique_ptr<Collective> take() SMDP_EXCLUDES(mutex_);
  // It has ended.
  void end(const Collective& collective, Clock::time_point end, bool has_failed) SMDP_EXCLUDES(mutex_);
  // All that have not begun: the group has failed.
  std::deque<std::unique_ptr<Collective>> take_all() SMDP_EXCLUDES(mutex_);
  // Queued operations have deadlines, too. active: what the progress thread drives; may be null.
  Lateness check(Clock::time_point now, const Collective* active) SMDP_EXCLUDES(mutex_);
  Clock::time_point deadline() const SMDP_EXCLUDES(mutex_);
  // A call by name that can never run, because rank 0 announced another one and then left; empty if there is none.
  std::string waiting_for_the_announced() const SMDP_EXCLUDES(mutex_);

  // Of the operation under way, or the last.
  Fingerprint last() const SMDP_EXCLUDES(mutex_);
  // All ranks have given it up.
  void give_up() SMDP_EXCLUDES(mutex_);
  // "In all_reduce #12 ...", for messages.
  std::string in_flight() const SMDP_EXCLUDES(mutex_);
  // The operation under way, as a message begins that says what became of it; empty if there is none.
  std::string under_way() const SMDP_EXCLUDES(mutex_);

  // For diagnosis. Fills what `status` says of operations, and returns the thread that called the last of them.
  std::uint64_t describe(Control::Status& status) const SMDP_EXCLUDES(mutex_);
  // Of the last call. Of the thread that made the group, while there is none.
  std::uint64_t last_caller() const SMDP_EXCLUDES(mutex_);
  // Nothing unless it is one of these operations and patient enough to be waited for.
  std::optional<Place> place_of(const Operation* operation) const SMDP_EXCLUDES(mutex_);
  // What has been under way for so long; empty if nothing has.
  std::string under_way_for(Clock::duration age) const SMDP_EXCLUDES(mutex_);

 private:
  enum class Driver { kNone, kCaller, kProgress };

  void begin(Collective& collective) SMDP_REQUIRES(mutex_);
  // Whoever gives it less time than is usual here may do without it.
  bool is_patient(const Collective& collective) const { return collective.timeout >= options_.timeout; }

  // call_queue_by_name.cpp, from here on. The first throws if it cannot.
  void queue_by_name(std::unique_ptr<Collective> collective) SMDP_REQUIRES(mutex_);
  void queue_next_name(const Fingerprint& named) SMDP_REQUIRES(mutex_);
  void end_by_name(const Collective& ended) SMDP_REQUIRES(mutex_);
  void queue_from_aside() SMDP_REQUIRES(mutex_);
  // Why the calls in aside_ wait, where announced_ is known.
  std::string reason_for_waiting_aside() const SMDP_REQUIRES(mutex_);

  const Members& members_;
  const GroupOptions& options_;
  const Failures& failures_;

  mutable Mutex mutex_;
  Condition idle_;  // a caller has stopped driving
  Driver driver_ SMDP_GUARDED_BY(mutex_) = Driver::kNone;
  std::thread::id caller_ SMDP_GUARDED_BY(mutex_);        // who drives, if it is a caller
  Clock::time_point last_end_ SMDP_GUARDED_BY(mutex_){};  // of a collective that others in the queue have waited for
  std::uint64_t last_caller_ SMDP_GUARDED_BY(mutex_) = this_thread();  // of a collective; before, who made the group
  const Operation* running_ SMDP_GUARDED_BY(mutex_) = nullptr;  // unless it has a shorter deadline than is usual here
  Fingerprint last_ SMDP_GUARDED_BY(mutex_);                    // of the running or last collective
  bool is_given_up_ SMDP_GUARDED_BY(mutex_) = false;            // that one, by all ranks alike
  std::deque<std::unique_ptr<Collective>> queue_ SMDP_GUARDED_BY(mutex_);
  // Calls by name that have not ended. On ranks other than 0, aside_ holds those that are not queued yet, announced_ is
  // the next one to queue (its name is 0 while that is not known), and is_asking_for_next_ says that it is being asked.
  std::set<std::uint64_t> names_ SMDP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::unique_ptr<Collective>> aside_ SMDP_GUARDED_BY(mutex_);
  Fingerprint announced_ SMDP_GUARDED_BY(mutex_);
  bool is_asking_for_next_ SMDP_GUARDED_BY(mutex_) = false;
};

}  // namespace smdp
