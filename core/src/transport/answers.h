// What the ranks of a group say of themselves when rank 0 asks, and what follows from it: who is late, who called
// something else, who waits for whom.
//
// Thread safety: progress thread only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/control.h"
#include "transport/members.h"
#include "transport/progress.h"

namespace smdp {

class Answers {
 public:
  explicit Answers(const Members& members);

  // Forgets all answers. Rank 0 has its own at once.
  void restart(Control::Status own);
  void add(int rank, Control::Status status);
  bool are_complete() const;

  // Who is behind collective `sequence`. has_left: by rank.
  Control::Verdict verdict(std::uint64_t sequence, const std::vector<bool>& has_left) const;
  // A number under which two ranks called different collectives, and what; 0 if they agree.
  std::pair<std::uint64_t, std::string> mismatch() const;
  // Two ranks that wait for each other, one in another group; empty if there are none.
  std::string deadlock() const;
  // Two ranks that have each made a group of all ranks for a while, and not the same one; empty if there are none yet.
  std::string separate_meetings();

 private:
  const Members& members_;
  std::vector<bool> answered_;  // by rank, as the next
  std::vector<Control::Status> statuses_;
  std::pair<std::uint64_t, std::uint64_t> separate_;  // the waits of such ranks, when they were first seen
  Clock::time_point separate_since_;
};

}  // namespace smdp
