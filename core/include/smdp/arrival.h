// Values that are still on their way, e.g. from a device to host memory, when an operation is asked for that needs
// them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "smdp/export.h"

namespace smdp {

// The operation takes its place in the order of calls at once, waits there for the values, and no time counts against
// its deadline, or those of operations behind it, before. One arrival may be that of several operations of a group.
// Thread-safe; make it with std::make_shared.
class SMDP_API Arrival : public std::enable_shared_from_this<Arrival> {
 public:
  Arrival();
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  ~Arrival();

  // The values are in place. Their memory must still be there, whether the operations have failed or not. Later calls
  // do nothing.
  void arrive();
  bool is_there() const { return is_there_.load(std::memory_order_acquire); }

  // For whoever runs the operations: what is done to the values first, by arrive() or at once, and whom arrive() wakes.
  void prepare_by(std::function<void()> function);
  void wake_by(std::function<void()> function);

 private:
  struct Functions;

  std::atomic<bool> is_there_{false};
  const std::unique_ptr<Functions> functions_;
};

}  // namespace smdp
