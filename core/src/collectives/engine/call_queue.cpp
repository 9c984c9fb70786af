#include "collectives/engine/call_queue.h"

#include <algorithm>
#include <utility>

#include "smdp/error.h"

namespace smdp {

std::unique_ptr<Collective> CallQueue::enter(std::unique_ptr<Collective> collective, bool must_queue) {
  const Lock lock(mutex_);
  failures_.check_usable();
  // The new call would wait for one that this same thread must finish first, at once or in its handle's wait().
  if (driver_ == Driver::kCaller && caller_ == std::this_thread::get_id()) {
    throw Error(
        members_.prefix() + "a signal handler called " + name_of(collective->fingerprint.kind) + " while " +
        last_.describe() +
        " is running in the same thread, and would wait for it forever. Let the handler only record the signal, "
        "and make the call after the step, on all ranks.");
  }
  if (last_caller_ != this_thread()) {
    last_caller_ = this_thread();
    note_caller(members_.world_rank(members_.rank));
  }
  if (!must_queue && driver_ == Driver::kNone && queue_.empty()) {
    driver_ = Driver::kCaller;
    caller_ = std::this_thread::get_id();
    begin(*collective);
    return collective;
  }
  const auto now = Clock::now();
  collective->deadline = now + collective->timeout;
  if (collective->is_by_name) {  // it may be set aside and is inspected meanwhile
    collective->since = now;
    collective->set_looks(options_.stall_time);
  }
  collective->next_inquiry = collective->final_inquiry();  // those before it inquire earlier
  if (collective->is_by_name) {
    queue_by_name(std::move(collective));
  } else {
    queue_.push_back(std::move(collective));
  }
  return nullptr;
}

void CallQueue::begin(Collective& collective) {
  collective.fingerprint.sequence = last_.sequence + 1;
  last_ = collective.fingerprint;
  is_given_up_ = false;
  running_ = is_patient(collective) ? collective.handle.get() : nullptr;
  if (driver_ == Driver::kProgress) collective.handle->begin();  // otherwise only this thread has the handle
  collective.began = collective.since = Clock::now();
  collective.deadline = collective.since + collective.timeout;  // those before it used up their own time
  collective.set_looks(options_.stall_time);
}

bool CallQueue::leave(Clock::time_point end) {
  bool has_more = false;
  {
    const Lock lock(mutex_);
    driver_ = Driver::kNone;
    running_ = nullptr;
    last_end_ = end;
    has_more = !queue_.empty();
  }
  if (failures_.is_news()) idle_.notify_all();
  return has_more;
}

void CallQueue::await_idle() {
  Lock lock(mutex_);
  idle_.wait(lock, [this]() SMDP_REQUIRES(mutex_) {
    return driver_ != Driver::kCaller || caller_ == std::this_thread::get_id();
  });
}

std::unique_ptr<Collective> CallQueue::take() {
  const Lock lock(mutex_);
  if (driver_ != Driver::kNone || queue_.empty() || failures_.error()) return nullptr;
  std::unique_ptr<Collective> next = std::move(queue_.front());
  queue_.pop_front();
  driver_ = Driver::kProgress;
  begin(*next);
  return next;
}

void CallQueue::end(const Collective& collective, Clock::time_point end, bool has_failed) {
  const Lock lock(mutex_);
  driver_ = Driver::kNone;
  running_ = nullptr;
  last_end_ = end;
  if (!has_failed) end_by_name(collective);  // after a failure of a call by name the group is closed
}

std::deque<std::unique_ptr<Collective>> CallQueue::take_all() {
  const Lock lock(mutex_);
  std::deque<std::unique_ptr<Collective>> all = std::exchange(queue_, {});
  for (auto& [name, collective] : aside_) all.push_back(std::move(collective));
  aside_.clear();
  return all;
}

CallQueue::Lateness CallQueue::check(Clock::time_point now, const Collective* active) {
  Lateness found;
  const Lock lock(mutex_);
  if (failures_.error() || (active != nullptr && active->is_overdue)) return found;
  found.running = last_;
  bool is_behind_late = active != nullptr && active->is_late();
  const auto look = [&](Collective& queued, std::uint64_t sequence, Clock::time_point last_end) {
    const bool is_open = is_behind_late || queued.waits_for_this_rank();
    is_behind_late = is_behind_late || queued.is_late();
    // While those before it are still ending, it waits for no rank.
    const auto begin = is_open || queued.was_open ? now : last_end;
    queued.was_open = is_open;
    if (begin + queued.timeout > queued.deadline) {
      queued.deadline = begin + queued.timeout;
      queued.next_inquiry = queued.final_inquiry();
    }
    if (now >= queued.next_inquiry) {
      queued.next_inquiry = Clock::time_point::max();
      found.is_inquiry_due = true;
    }
    if (now < queued.deadline || found.overdue) return;
    found.overdue = Overdue{queued.fingerprint, queued.label, queued.timeout, ""};
    found.overdue->operation.sequence = sequence;
  };
  for (std::size_t i = 0; i < queue_.size(); ++i) look(*queue_[i], last_.sequence + 1 + i, last_end_);
  for (const auto& [name, aside] : aside_) {
    look(*aside, 0, last_end_);
    if (announced_.name == 0 || now < aside->next_stall) continue;
    const auto waited = std::chrono::round<std::chrono::seconds>(now - aside->since);
    aside->next_stall = now + (now - aside->since);
    found.stalled.push_back(aside->fingerprint.describe() + " is still running after " + seconds(waited) + ": " +
                            reason_for_waiting_aside() + ".");
  }
  if (found.overdue && found.overdue->operation.sequence == 0 && announced_.name != 0) {
    found.overdue->reason = reason_for_waiting_aside();
  }
  return found;
}

Clock::time_point CallQueue::deadline() const {
  Clock::time_point first = Clock::time_point::max();
  const Lock lock(mutex_);
  for (const auto& queued : queue_) first = std::min({first, queued->next_inquiry, queued->deadline});
  for (const auto& [name, aside] : aside_) {
    first = std::min({first, aside->next_inquiry, aside->deadline});
    if (announced_.name != 0) first = std::min(first, aside->next_stall);
  }
  return first;
}

Fingerprint CallQueue::last() const {
  const Lock lock(mutex_);
  return last_;
}

void CallQueue::give_up() {
  const Lock lock(mutex_);
  is_given_up_ = true;
}

std::string CallQueue::in_flight() const {
  const Lock lock(mutex_);
  if (last_.kind == OpKind::kNone) return "No operation was in flight.";
  return (driver_ == Driver::kNone ? "Idle; the last operation was " : "In ") + last_.describe() + ".";
}

std::string CallQueue::under_way() const {
  const Lock lock(mutex_);
  return driver_ == Driver::kNone ? "" : last_.describe();
}

std::uint64_t CallQueue::describe(Control::Status& status) const {
  const Lock lock(mutex_);
  status.last = last_;
  status.has_given_up = is_given_up_;
  status.busy = driver_ != Driver::kNone;
  status.called = last_.sequence + queue_.size();
  if (announced_.name == 0) status.called += aside_.size();  // otherwise the next one is not among them
  return last_caller_;
}

std::uint64_t CallQueue::last_caller() const {
  const Lock lock(mutex_);
  return last_caller_;
}

std::optional<CallQueue::Place> CallQueue::place_of(const Operation* operation) const {
  const Lock lock(mutex_);
  if (operation == nullptr) return std::nullopt;
  Place place{last_, last_.sequence};
  if (operation == running_) return place;
  const auto queued =
      std::find_if(queue_.begin(), queue_.end(), [&](const auto& one) { return one->handle.get() == operation; });
  const auto aside = std::find_if(aside_.begin(), aside_.end(),
                                  [&](const auto& one) { return one.second->handle.get() == operation; });
  if (queued == queue_.end() && aside == aside_.end()) return std::nullopt;
  const Collective& waiting = queued == queue_.end() ? *aside->second : **queued;
  if (!is_patient(waiting)) return std::nullopt;
  place.operation = waiting.fingerprint;
  place.operation.sequence =
      queued == queue_.end() ? 0 : last_.sequence + 1 + static_cast<std::uint64_t>(queued - queue_.begin());
  return place;
}

std::string CallQueue::under_way_for(Clock::duration age) const {
  const Lock lock(mutex_);
  return running_ == nullptr || Clock::now() - running_->began() < age ? "" : last_.describe();
}

}  // namespace smdp
