// What the threads of this process wait for, so that a group can tell where a rank is that does not come.
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
  std::uint64_t id = 0;  // of this one wait, among those of all processes
  std::chrono::steady_clock::time_point since;
  const Operation* operation = nullptr;  // only to be compared; null: a group is being made
  std::string group;                     // its name
  int size = 0;                          // and its ranks
  int world_rank = -1;                   // which of them waits here; -1: not known
  std::string purpose;                   // what it is for; may be empty
  std::vector<std::string> replaced;     // the groups whose place it takes
  std::exception_ptr broken;             // why they will never meet
  bool has_other_threads = false;        // of threads that may make calls meanwhile

  bool replaces(const std::string& other) const;
};

// A short wait needs no scope: nobody asks about it.
inline constexpr std::chrono::milliseconds kShortWait{200};

// This thread can do nothing else until what it waits for is there. Scopes of a thread nest; the innermost counts.
class WaitScope {
 public:
  explicit WaitScope(const Operation& operation);
  // Until all ranks of a new group have come.
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

// Of this thread, among those of this process; unlike its std::thread::id it is never used again.
std::uint64_t this_thread();

std::optional<ThreadWait> wait_of(std::uint64_t thread);
// Of the thread that has made a group as this rank of the world for longest, and for longer than this.
std::optional<ThreadWait> meeting_of(int world_rank, std::chrono::steady_clock::duration age);

// This thread calls operations as this rank of the world. What one thread waits for keeps the rank from coming only if
// no other one calls any.
void note_caller(int world_rank);
bool is_only_caller(int world_rank, std::uint64_t thread);

// Tells whoever waits there why it is in vain; they ask for it themselves.
void break_wait(std::uint64_t id, std::exception_ptr error);
std::exception_ptr broken_wait(std::uint64_t id);

}  // namespace smdp
