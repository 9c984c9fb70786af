// Records what the threads of this process wait for, so that a group can tell where a missing rank is.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace smdp {

class Operation;

struct ThreadWait {
  std::uint64_t id = 0;  // of this wait, unique among all processes
  std::chrono::steady_clock::time_point since;
  const Operation* operation = nullptr;  // only compared; null: a group is being made
  std::string group;                     // its name
  int size = 0;                          // number of its ranks
  int world_rank = -1;                   // the rank that waits here; -1: unknown
  std::string purpose;                   // what it is for; may be empty
  std::vector<std::string> replaced;     // the groups that it replaces
  std::exception_ptr broken;             // why the ranks will never meet
  bool has_other_threads = false;        // whether other threads may make calls meanwhile

  bool replaces(const std::string& other) const;
};

// A short wait needs no scope, because no inquiry asks about it.
inline constexpr std::chrono::milliseconds kShortWait{200};

// Marks this thread as unable to do anything else until its wait ends. Scopes of a thread nest; the innermost counts.
class WaitScope {
 public:
  explicit WaitScope(const Operation& operation);
  // For a wait until all ranks of a new group have joined.
  WaitScope(std::string group, int size, int world_rank, std::string purpose, std::vector<std::string> replaced);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

  std::uint64_t id() const { return id_; }

 private:
  void enter(ThreadWait wait);

  std::uint64_t id_ = 0;
  std::optional<ThreadWait> outer_;
};

// Returns a number for this thread within the process, which unlike its std::thread::id is never reused.
std::uint64_t this_thread();

std::optional<ThreadWait> wait_of(std::uint64_t thread);
// Returns the wait of the thread that has been making a group as this world rank for longest, and longer than `age`.
std::optional<ThreadWait> meeting_of(int world_rank, std::chrono::steady_clock::duration age);

// Notes that this thread calls operations as this world rank. One thread's wait keeps the rank from joining elsewhere
// only if no other thread makes calls for it.
void note_caller(int world_rank);
bool is_only_caller(int world_rank, std::uint64_t thread);

// Ends a wait that cannot succeed with `error`. The waiting thread polls for this.
void break_wait(std::uint64_t id, std::exception_ptr error);
std::exception_ptr broken_wait(std::uint64_t id);

}  // namespace smdp
