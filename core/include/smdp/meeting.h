// The meeting of the ranks of a new group.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdp/export.h"

namespace smdp {

class WaitScope;

// Returns the reason why the ranks can never all join, or null as long as they may. has_failed: the meeting has failed
// and this may be the cause, so the reason need not be certain. Called by one thread at a time. May be empty.
using Obstacle = std::function<std::exception_ptr(bool has_failed)>;

// Announces, for as long as it exists, that this thread waits for the `size` ranks of `group`. Ranks that wait for this
// rank in another group thereby find out that neither wait can end. Group makes its own Meeting; code that waits for
// ranks before it makes a group needs one as well.
class SMDP_API Meeting {
 public:
  // obstacle: called by check(). world_rank: world rank of this rank; -1: unknown. purpose: what the group is for, in
  // messages; may be empty. replaced: groups that it replaces, of which this rank calls no operation until all ranks
  // have joined.
  Meeting(std::string group, int size, Obstacle obstacle = {}, int world_rank = -1, std::string purpose = {},
          std::vector<std::string> replaced = {});
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Throws MismatchError if the ranks wait for each other in different groups, or else the obstacle's error. Must be
  // called repeatedly.
  void check(bool has_failed = false) const;

 private:
  std::unique_ptr<WaitScope> scope_;
  Obstacle obstacle_;
};

}  // namespace smdp
