// The collectives that a rank has called and that have not ended, in the order in which all ranks run them. The queue
// also decides which thread drives: the caller whose operation it is, or the progress thread.
//
// Calls by name follow rank 0's order, see call_queue_by_name.cpp.
//
// Locks: mutex_ is taken before the mutexes of Failures, of an operation and of thread_wait.cpp. Of the callbacks,
// only is_open and label run under it.
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
  // The rank whose order of calls by name all ranks follow.
  static constexpr int kOrderingRank = 0;

  // A queued operation whose deadline has passed.
  struct Overdue {
    Fingerprint operation;
    std::function<std::string()> label;
    std::chrono::milliseconds timeout;
    std::string reason;  // empty: it waits for the end of the running one
  };
  // The findings of check().
  struct Lateness {
    Fingerprint running;               // the running operation, or the last one
    bool is_inquiry_due = false;       // about the running operation
    std::vector<std::string> stalled;  // lines to log
    std::optional<Overdue> overdue;
  };
  // Where a thread that waits for an operation is waiting.
  struct Place {
    Fingerprint operation;    // sequence 0: not known yet
    std::uint64_t under_way;  // number of the running operation
  };

  CallQueue(const Members& members, const GroupOptions& options, const Failures& failures)
      : members_(members), options_(options), failures_(failures) {}

  // Called by a caller. Begins the collective and returns it: this thread drives it and then calls leave(). If it must
  // be queued or cannot begin at once, queues it for the progress thread and returns null. Throws the group's error, a
  // MismatchError if another call with its name is in flight, or an Error in a signal handler that interrupted a
  // caller.
  std::unique_ptr<Collective> enter(std::unique_ptr<Collective> collective, bool must_queue) SMDP_EXCLUDES(mutex_);
  // Ends the driving by such a caller. Returns whether others are queued.
  bool leave(Clock::time_point end) SMDP_EXCLUDES(mutex_);
  // Waits until no other thread drives its own call.
  void await_idle() SMDP_EXCLUDES(mutex_);

  // Progress thread. Begins the next operation; returns null if there is none or a caller drives.
  std::unique_ptr<Collective> take() SMDP_EXCLUDES(mutex_);
  // Ends that operation.
  void end(const Collective& collective, Clock::time_point end, bool has_failed) SMDP_EXCLUDES(mutex_);
  // Removes and returns all operations that have not begun, because the group has failed.
  std::deque<std::unique_ptr<Collective>> take_all() SMDP_EXCLUDES(mutex_);
  // Checks the deadlines of queued operations. active: what the progress thread drives; may be null.
  Lateness check(Clock::time_point now, const Collective* active) SMDP_EXCLUDES(mutex_);
  Clock::time_point deadline() const SMDP_EXCLUDES(mutex_);
  // Returns a call by name that can never run, because rank 0 announced another one and then left; empty if there is
  // none.
  std::string waiting_for_the_announced() const SMDP_EXCLUDES(mutex_);

  // Returns the running operation, or the last one.
  Fingerprint last() const SMDP_EXCLUDES(mutex_);
  // Notes that all ranks have given up the operation.
  void give_up() SMDP_EXCLUDES(mutex_);
  // Returns "In all_reduce #12 ...", for messages.
  std::string in_flight() const SMDP_EXCLUDES(mutex_);
  // Returns the running operation as text, for the beginning of a message about it; empty if there is none.
  std::string under_way() const SMDP_EXCLUDES(mutex_);

  // For diagnosis. Fills the fields of `status` about operations, and returns the thread that called the last of them.
  std::uint64_t describe(Control::Status& status) const SMDP_EXCLUDES(mutex_);
  // Returns the thread of the last call, or the thread that made the group if there was no call.
  std::uint64_t last_caller() const SMDP_EXCLUDES(mutex_);
  // Returns nothing unless this is one of these operations and patient enough to be waited for.
  std::optional<Place> place_of(const Operation* operation) const SMDP_EXCLUDES(mutex_);
  // Returns what has been running for at least `age`; empty if nothing has.
  std::string under_way_for(Clock::duration age) const SMDP_EXCLUDES(mutex_);

 private:
  enum class Driver { kNone, kCaller, kProgress };

  void begin(Collective& collective) SMDP_REQUIRES(mutex_);
  // An operation with a shorter timeout than the group's may be expected to fail.
  bool is_patient(const Collective& collective) const { return collective.timeout >= options_.timeout; }

  // Implemented in call_queue_by_name.cpp, from here on. The first one throws if the call cannot be queued.
  void queue_by_name(std::unique_ptr<Collective> collective) SMDP_REQUIRES(mutex_);
  void queue_next_name(const Fingerprint& named) SMDP_REQUIRES(mutex_);
  void end_by_name(const Collective& ended) SMDP_REQUIRES(mutex_);
  void queue_from_aside() SMDP_REQUIRES(mutex_);
  // Returns why the calls in aside_ wait, if announced_ is known.
  std::string reason_for_waiting_aside() const SMDP_REQUIRES(mutex_);

  const Members& members_;
  const GroupOptions& options_;
  const Failures& failures_;

  mutable Mutex mutex_;
  Condition idle_;  // notified when a caller stops driving
  Driver driver_ SMDP_GUARDED_BY(mutex_) = Driver::kNone;
  std::thread::id caller_ SMDP_GUARDED_BY(mutex_);        // the driving thread, if it is a caller
  Clock::time_point last_end_ SMDP_GUARDED_BY(mutex_){};  // end of a collective that others in the queue waited for
  std::uint64_t last_caller_ SMDP_GUARDED_BY(mutex_) = this_thread();  // of a collective; initially the thread that
                                                                       // made the group
  const Operation* running_ SMDP_GUARDED_BY(mutex_) = nullptr;  // null if it has a shorter timeout than the group
  Fingerprint last_ SMDP_GUARDED_BY(mutex_);                    // the running or last collective
  bool is_given_up_ SMDP_GUARDED_BY(mutex_) = false;            // whether all ranks have given up last_
  std::deque<std::unique_ptr<Collective>> queue_ SMDP_GUARDED_BY(mutex_);
  // Calls by name that have not ended. On ranks other than 0, aside_ holds those that are not queued yet, announced_ is
  // the next one to queue (its name is 0 while that is unknown), and is_asking_for_next_ says that this rank is asking.
  std::set<std::uint64_t> names_ SMDP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::unique_ptr<Collective>> aside_ SMDP_GUARDED_BY(mutex_);
  Fingerprint announced_ SMDP_GUARDED_BY(mutex_);
  bool is_asking_for_next_ SMDP_GUARDED_BY(mutex_) = false;
};

}  // namespace smdp
