// Why a group ends, and who is gone: the first error wins, and who has died or left is kept.
//
// Locks: mutex_ is the innermost of a group's; nothing is called under it. Suspects belong to the progress thread.
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
  // Who is told of an error. kEveryoneAndBeyond: they tell the other groups in which they wait.
  enum class Tell { kNobody, kEveryone, kEveryoneAndBeyond };

  struct Callbacks {
    // Any thread: something has changed that whoever drives an operation must look at.
    std::function<void()> wake;
    // Any thread, after wake: the group has failed, so all that is under way has to, and others are to be told.
    std::function<void()> on_failure;
    // What this rank is in, for messages.
    std::function<std::string()> in_flight;
  };

  Failures(const Members& members, Callbacks callbacks);

  // Any thread. Later errors only add who has died.
  void fail(std::exception_ptr error, Tell whom) SMDP_EXCLUDES(mutex_);
  // The group is shut down, which is its error unless it has one; false if it was before.
  bool close() SMDP_EXCLUDES(mutex_);
  // The error that the other ranks have not been told yet. Whoever takes it tells them.
  std::optional<Failure> take_untold() SMDP_EXCLUDES(mutex_);

  // There is an error, or a rank has left. Costs no lock.
  bool is_news() const { return is_news_.load(); }
  // Why nothing can begin any more; null while it can. In a forked child that is another error.
  std::exception_ptr error() const SMDP_EXCLUDES(mutex_);
  // Throws error().
  void check_usable() const;
  bool is_inherited() const;
  // In a forked child: why the group is closed to it. Else null.
  std::exception_ptr inherited_error() const;

  // error(), or the departure of a rank: why nothing new can begin that needs every rank. Null while it can.
  std::exception_ptr obstacle() const;
  // Why one of these ranks does nothing any more, whatever has closed the group: it has died, or it has left. Else
  // null.
  std::exception_ptr death_of(const std::vector<int>& ranks) const SMDP_EXCLUDES(mutex_);
  std::exception_ptr departure_of(const std::vector<int>& ranks) const SMDP_EXCLUDES(mutex_);

  bool has_left(int rank) const SMDP_EXCLUDES(mutex_);
  std::vector<int> left() const SMDP_EXCLUDES(mutex_);
  // E.g. " has left the group: its program ended, or called shutdown()."
  std::string left_reason(int rank) const SMDP_EXCLUDES(mutex_);

  // Progress thread, from here on. A rank has left; reason is empty for a normal end.
  void on_left(int rank, const std::string& reason) SMDP_EXCLUDES(mutex_);
  // The connection to a rank has ended.
  void on_broken(int rank, const std::string& reason) SMDP_EXCLUDES(mutex_);
  // Fails for a rank whose connection has ended long enough ago.
  void check_suspects(Clock::time_point now);
  // When to do that.
  Clock::time_point deadline() const;

 private:
  const Members& members_;
  const Callbacks callbacks_;
  const std::uint64_t fork_generation_;

  std::map<int, std::pair<Clock::time_point, std::string>> suspects_;  // ranks with a broken stream: blamed then

  mutable Mutex mutex_;
  std::exception_ptr error_ SMDP_GUARDED_BY(mutex_);
  std::optional<Failure> untold_ SMDP_GUARDED_BY(mutex_);
  bool is_closed_ SMDP_GUARDED_BY(mutex_) = false;
  std::map<int, std::string> left_ SMDP_GUARDED_BY(mutex_);  // ranks that left, and why
  std::map<int, std::exception_ptr> dead_ SMDP_GUARDED_BY(mutex_);
  std::atomic<bool> is_news_{false};  // written under mutex_, after what has changed
};

}  // namespace smdp
