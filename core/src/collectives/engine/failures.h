// Records why a group ends and which ranks are gone. The first error wins; ranks that died or left are kept.
//
// Locks: mutex_ is the innermost lock of a group; nothing is called under it. Suspects belong to the progress thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/failure.h"
#include "common/mutex.h"
#include "transport/members.h"
#include "transport/progress.h"

namespace smdp {

class Failures {
 public:
  // Which ranks are told of an error. kEveryoneAndBeyond: they also tell the other groups in which they wait.
  enum class Tell { kNobody, kEveryone, kEveryoneAndBeyond };

  struct Callbacks {
    // Any thread: called after a change that the driving thread must see.
    std::function<void()> wake;
    // Any thread, after wake: the group has failed, so all running operations must fail and the other ranks must be
    // told.
    std::function<void()> on_failure;
    // Returns the operation that this rank is in, for messages.
    std::function<std::string()> in_flight;
  };

  Failures(const Members& members, Callbacks callbacks);

  // Any thread. Later errors only add ranks that have died.
  void fail(std::exception_ptr error, Tell whom) SMDP_EXCLUDES(mutex_);
  // Records that the group is shut down, which becomes its error unless it has one. Returns false if it was shut down
  // before.
  bool close() SMDP_EXCLUDES(mutex_);
  // Returns the error that the other ranks have not been told yet. The caller must tell them.
  std::optional<Failure> take_untold() SMDP_EXCLUDES(mutex_);

  // Returns whether there is an error or a rank has left. Takes no lock.
  bool is_news() const { return is_news_.load(); }
  // Returns why no operation can begin any more, or null. A forked child gets a different error.
  std::exception_ptr error() const SMDP_EXCLUDES(mutex_);
  // Throws error().
  void check_usable() const;
  bool is_inherited() const;
  // Returns why the group is closed in a forked child, or null.
  std::exception_ptr inherited_error() const;

  // Returns error() or the departure of a rank: the reason why no operation that needs every rank can begin. Null if
  // there is none.
  std::exception_ptr obstacle() const;
  // Returns why one of these ranks no longer takes part, whatever closed the group: it has died or left. Null if all
  // do.
  std::exception_ptr death_of(const std::vector<int>& ranks) const SMDP_EXCLUDES(mutex_);
  std::exception_ptr departure_of(const std::vector<int>& ranks) const SMDP_EXCLUDES(mutex_);

  bool has_left(int rank) const SMDP_EXCLUDES(mutex_);
  std::vector<int> left() const SMDP_EXCLUDES(mutex_);
  // Returns, for example, " has left the group: its program ended, or called shutdown()."
  std::string left_reason(int rank) const SMDP_EXCLUDES(mutex_);

  // Progress thread, from here on. Records that a rank has left; `reason` is empty for a normal end.
  void on_left(int rank, const std::string& reason) SMDP_EXCLUDES(mutex_);
  // Records that the connection to a rank has ended.
  void on_broken(int rank, const std::string& reason) SMDP_EXCLUDES(mutex_);
  // Fails the group for a rank whose connection ended long enough ago.
  void check_suspects(Clock::time_point now);
  // Returns when to call that.
  Clock::time_point deadline() const;

 private:
  const Members& members_;
  const Callbacks callbacks_;
  const std::uint64_t fork_generation_;

  std::map<int, std::pair<Clock::time_point, std::string>> suspects_;  // ranks with a broken stream, and when to blame
                                                                       // them

  mutable Mutex mutex_;
  std::exception_ptr error_ SMDP_GUARDED_BY(mutex_);
  std::optional<Failure> untold_ SMDP_GUARDED_BY(mutex_);
  bool is_closed_ SMDP_GUARDED_BY(mutex_) = false;
  std::map<int, std::string> left_ SMDP_GUARDED_BY(mutex_);  // ranks that left, and why
  std::map<int, std::exception_ptr> dead_ SMDP_GUARDED_BY(mutex_);
  std::atomic<bool> is_news_{false};  // written under mutex_, after the change
};

}  // namespace smdp
