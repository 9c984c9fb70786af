// Values that are not in memory yet when an operation that reads them is called, e.g. because a device still copies
// them to the host.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "smdp/export.h"

namespace smdp {

// Marks the moment at which an operation's input is complete. The operation takes its place in the order of calls at
// once and waits there for the values. Until they arrive, no time counts against its deadline or against the deadlines
// of the operations queued behind it. Several operations of one group may share an arrival. Thread-safe. Create it with
// std::make_shared.
class SMDP_API Arrival : public std::enable_shared_from_this<Arrival> {
 public:
  Arrival();
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  ~Arrival();

  // Reports that the values are in place. Their memory must still be valid, even if the operations have failed. Later
  // calls do nothing.
  void arrive();
  bool is_there() const { return is_there_.load(std::memory_order_acquire); }

  // For the code that runs the operations. prepare_by() sets what happens to the values first: arrive() calls it, or it
  // runs at once if the values are there. wake_by() sets what arrive() calls afterwards to wake the waiting thread.
  void prepare_by(std::function<void()> function);
  void wake_by(std::function<void()> function);

 private:
  struct Functions;

  std::atomic<bool> is_there_{false};
  const std::unique_ptr<Functions> functions_;
};

}  // namespace smdp
