// Access to the progress thread of a group while the group is open.
#pragma once

#include <memory>
#include <utility>

#include "transport/progress.h"

namespace smdp {

class GroupThread {
 public:
  explicit GroupThread(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  // Any thread. Runs `work` on the progress thread later if the group is still open then, and `if_closed` otherwise.
  template <class Work, class IfClosed>
  void post(Work work, IfClosed if_closed) const {
    progress_->post([is_open = is_open_, work = std::move(work), if_closed = std::move(if_closed)] {
      *is_open ? work() : if_closed();
    });
  }
  template <class Work>
  void post(Work work) const {
    post(std::move(work), [] {});
  }

  // Progress thread.
  void close() { *is_open_ = false; }

 private:
  const std::shared_ptr<Progress> progress_;
  const std::shared_ptr<bool> is_open_ = std::make_shared<bool>(true);  // progress thread only
};

}  // namespace smdp
