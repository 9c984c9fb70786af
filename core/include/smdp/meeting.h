// The ranks of a new group come together.
#pragma once

#include <memory>
#include <string>

#include "smdp/export.h"

namespace smdp {

class WaitScope;

// From here on this thread waits for the `size` ranks of `group`, and others are told so: those that wait for this rank
// in another group find out that neither ever ends. Group has its own; whoever waits for ranks before it needs one,
// too.
class SMDP_API Meeting {
 public:
  Meeting(std::string group, int size);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Throws MismatchError where that has been found out. To be asked now and then; any thread.
  void check() const;

 private:
  std::unique_ptr<WaitScope> scope_;
};

}  // namespace smdp
