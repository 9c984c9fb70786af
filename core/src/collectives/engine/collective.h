// One call of a collective, from the call until it has ended.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "collectives/context.h"
#include "common/task.h"
#include "smdp/arrival.h"
#include "smdp/operation.h"
#include "transport/control.h"
#include "transport/fingerprint.h"
#include "transport/progress.h"

namespace smdp {

// Time within which the answer to an inquiry arrives.
inline constexpr auto kAnswer = Control::kInquiry + std::chrono::milliseconds(300);

// Time between a deadline and the error, in which data that has arrived is read: this process may have been stopped.
inline constexpr std::chrono::milliseconds kLastWord{50};

// While it is queued, the CallQueue's mutex guards it; then it belongs to the thread that drives it.
struct Collective {
  using Body = std::function<Task(Context&)>;

  Fingerprint fingerprint;
  std::size_t bytes;
  std::function<std::string()> label;
  bool is_counted = true;
  bool is_by_name = false;
  std::shared_ptr<Fingerprint> announced_name;  // set if this broadcast only tells which operation is next
  std::function<bool()> is_open;
  std::shared_ptr<Arrival> arrival;
  Body body;
  std::shared_ptr<Operation> handle = std::make_shared<Operation>();
  Scheduler scheduler;
  Task root;
  Clock::time_point deadline;
  std::chrono::milliseconds timeout;
  Clock::time_point began;
  Clock::time_point since;  // when it began to wait for others
  Clock::time_point next_inquiry;
  Clock::time_point next_stall;  // when to inquire for the next line about a stall, or to write it
  bool is_stall_inquired = false;
  bool was_open = false;  // result of the last check
  bool is_overdue = false;
  std::optional<Clock::time_point> next_late_line;

  // E.g. "all_reduce #12 float32[512] SUM (gradients 'a' to 'b')".
  std::string describe() const;
  // Returns whether this rank's values are still on their device.
  bool is_late() const { return arrival && !arrival->is_there(); }
  // Returns whether this rank has not provided all its data.
  bool waits_for_this_rank() const { return is_late() || (is_open && is_open()); }
  // Returns a rank that it waits for; -1: no particular one.
  int awaited() const;

  // An operation this old asks which operations the other ranks are in, because ranks that wait for each other in
  // different ones never meet. It asks again when it is twice, four times ... as old, because ranks may begin to wait
  // in other groups later.
  static constexpr std::chrono::seconds kEarlyInquiry{1};
  // Sets the times of inquiries and log lines, counted from `since`. stall_time: see GroupOptions.
  void set_looks(std::chrono::milliseconds stall_time);
  Clock::time_point next_look() const { return std::min({next_inquiry, next_stall, deadline}); }
  // Returns when to ask which ranks are late, so that the answer is there at the deadline.
  Clock::time_point final_inquiry() const;
};

}  // namespace smdp
