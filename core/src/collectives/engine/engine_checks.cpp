// Reasons to stop waiting: an error, a rank that has left, a deadline.
#include <string>

#include "collectives/engine/engine.h"
#include "common/failure.h"
#include "common/log.h"
#include "smdp/error.h"

namespace smdp {

bool Engine::check(Collective& collective) {
  if (failures_.is_news()) {
    if (const std::exception_ptr error = failures_.error()) {
      collective.scheduler.fail(error);
      return true;
    }
    if (check_departed(collective)) return true;
  }
  try {
    board_.compare_all();
  } catch (const MismatchError&) {
    collective.scheduler.fail(std::current_exception());
    return true;
  }
  const auto now = Clock::now();
  const bool is_open = collective.waits_for_this_rank();
  if (is_open || collective.was_open) {
    diagnosis_.check_late(collective, now);
    collective.was_open = is_open;
    collective.since = now;
    collective.deadline = now + collective.timeout;
    collective.is_overdue = false;
    collective.set_looks(options_.stall_time);
    return false;
  }
  diagnosis_.check(collective, now);
  if (now < collective.deadline) return false;
  if (!collective.is_overdue) {
    collective.is_overdue = true;
    collective.deadline = now + kLastWord;
    return false;
  }
  collective.scheduler.fail(std::make_exception_ptr(
      TimeoutError(members_.prefix() + collective.describe() + " timed out after " + seconds(collective.timeout) +
                   ": " + diagnosis_.verdict_for(collective.awaited()) + ".")));
  return true;
}

// On this host, a rank published everything before it announced its departure, so what is missing now never arrives.
// Data from a rank on another host may still be in transit until its streams have ended.
bool Engine::check_departed(Collective& collective) {
  if (collective.scheduler.poll()) return true;
  for (const Scheduler::Wait& wait : collective.scheduler.waits()) {
    if (wait.peer < 0 || may_still_send(wait.peer) || !failures_.has_left(wait.peer)) continue;
    collective.scheduler.fail(std::make_exception_ptr(PeerLostError(members_.prefix() + collective.describe() +
                                                                        " cannot finish: " + members_.who(wait.peer) +
                                                                        failures_.left_reason(wait.peer),
                                                                    {wait.peer})));
    return true;
  }
  return false;
}

bool Engine::may_still_send(int rank) const {
  const auto& link = links_[static_cast<std::size_t>(rank)];
  return link && !link->is_broken();
}

void Engine::check_queue(Clock::time_point now) {
  const CallQueue::Lateness found = queue_.check(now, active_.get());
  for (const std::string& line : found.stalled) log(LogLevel::kWarning, without_tag(members_.prefix()) + line);
  // It waits for the same ranks as the running operation.
  if (found.is_inquiry_due) diagnosis_.inquire(found.running.sequence);
  if (!found.overdue) return;
  const CallQueue::Overdue& late = *found.overdue;
  const std::string what = late.operation.describe() + (late.label ? " (" + late.label() + ")" : "") +
                           " timed out after " + seconds(late.timeout) + ": ";
  const std::string reason = !late.reason.empty() ? late.reason
                                                  : "it waits for the end of " + found.running.describe() + ": " +
                                                        diagnosis_.verdict_for(active_ ? active_->awaited() : -1);
  failures_.fail(std::make_exception_ptr(TimeoutError(members_.prefix() + what + reason + ".")), Tell::kEveryone);
}

void Engine::check_announced() {
  const std::string what = queue_.waiting_for_the_announced();
  if (what.empty() || failures_.error()) return;
  const std::string who = members_.who(CallQueue::kOrderingRank) + failures_.left_reason(CallQueue::kOrderingRank);
  const std::string text = members_.prefix() + what + " cannot finish: " + who;
  failures_.fail(std::make_exception_ptr(PeerLostError(text, {CallQueue::kOrderingRank})), Tell::kEveryone);
}

}  // namespace smdp
