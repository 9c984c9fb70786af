// The ranks of a new group come together.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "smdp/export.h"

namespace smdp {

class WaitScope;

// Why ranks will never all come: an error, or null while they may. has_failed: the meeting has failed, and this may be
// why; then it need not be certain. Not asked by two threads at a time. May be empty.
using Obstacle = std::function<std::exception_ptr(bool has_failed)>;

// From here on this thread waits for the `size` ranks of `group`, and others are told so: those that wait for this rank
// in another group find out that neither ever ends. Group has its own; whoever waits for ranks before it needs one,
// too.
class SMDP_API Meeting {
 public:
  // obstacle: asked by check(). world_rank: of this rank, -1: not known. purpose: what the group is for, as messages
  // say it; may be empty. replaced: groups whose place it takes, of which this rank calls no operation before all have
  // come.
  Meeting(std::string group, int size, Obstacle obstacle = {}, int world_rank = -1, std::string purpose = {},
          std::vector<std::string> replaced = {});
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Throws MismatchError where that has been found out, else what the obstacle gives. To be asked now and then.
  void check(bool has_failed = false) const;

 private:
  std::unique_ptr<WaitScope> scope_;
  Obstacle obstacle_;
};

}  // namespace smdp
