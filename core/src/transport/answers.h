// The answers that the ranks of a group give when rank 0 asks for their state, and what follows from them: which ranks
// are late, which called something else, and which wait for each other.
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

  // Forgets all answers and starts with rank 0's own.
  void restart(Control::Status own);
  void add(int rank, Control::Status status);
  bool are_complete() const;

  // Returns which ranks are behind collective `sequence`. has_left: by rank.
  Control::Verdict verdict(std::uint64_t sequence, const std::vector<bool>& has_left) const;
  // Returns a sequence number under which two ranks called different collectives, and a description; 0 if they agree.
  std::pair<std::uint64_t, std::string> mismatch() const;
  // Describes two ranks that wait for each other, one of them in another group; empty if there are none.
  std::string deadlock() const;
  // Describes two ranks that have for a while each made a group of all ranks, but different ones; empty if there are
  // none.
  std::string separate_meetings();

 private:
  const Members& members_;
  std::vector<bool> answered_;  // by rank, like statuses_
  std::vector<Control::Status> statuses_;
  std::pair<std::uint64_t, std::uint64_t> separate_;  // the waits of such ranks when they were first seen
  Clock::time_point separate_since_;
};

}  // namespace smdp
