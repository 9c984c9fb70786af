#include <algorithm>
#include <cerrno>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

#include "collectives/engine.h"
#include "collectives/registry.h"
#include "common/failure.h"
#include "common/fork_guard.h"
#include "common/log.h"
#include "common/shortage.h"
#include "observability/trace.h"

namespace smdp {
namespace {

// Between a broken data stream and blaming its peer: the control plane knows better, and may need its keepalive.
constexpr std::chrono::milliseconds kSuspicion{4500};

// Between hosts, no rank ends such an operation before it has something from every other one.
bool needs_every_rank(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kBarrier:
    case OpKind::kSplit:
    case OpKind::kAllReduceSparse:  // it begins with an all_gather of counts
      return true;
    default:
      return false;
  }
}

}  // namespace

std::exception_ptr Engine::interruption() const {
  const std::lock_guard lock(mutex_);
  const std::string where = last_.kind == OpKind::kNone ? "" : " in " + last_.describe();
  return std::make_exception_ptr(ClosedError(members_.prefix() + "interrupted" + where + "."));
}

bool Engine::check(Collective& collective) {
  if (stop_.load()) {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
    }
    if (error) {
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
    check_late(collective, now);
    collective.was_open = is_open;
    collective.since = now;
    collective.deadline = now + collective.timeout;
    collective.is_overdue = false;
    set_looks(collective);
    return false;
  }
  check_inquiry(collective, now);
  check_stall(collective, now);
  if (now < collective.deadline) return false;
  if (!collective.is_overdue) {
    collective.is_overdue = true;
    collective.deadline = now + kLastWord;
    return false;
  }
  collective.scheduler.fail(std::make_exception_ptr(TimeoutError(members_.prefix() + collective.describe() +
                                                                 " timed out after " + seconds(collective.timeout) +
                                                                 ": " + verdict_for(collective.awaited()) + ".")));
  return true;
}

void Engine::check_queue(Clock::time_point now) {
  Fingerprint late;
  Fingerprint running;
  std::function<std::string()> label;
  std::optional<std::chrono::milliseconds> overdue;
  std::string aside_reason;
  std::vector<std::string> stalled;
  bool is_inquiry_due = false;
  {
    const std::lock_guard lock(mutex_);
    if (error_ || (active_ && active_->is_overdue)) return;
    running = last_;
    bool is_behind_late = active_ && active_->is_late();
    const auto look = [&](Collective& queued, std::uint64_t sequence) {
      const bool is_open = is_behind_late || queued.waits_for_this_rank();
      is_behind_late = is_behind_late || queued.is_late();
      // While those before it end, it waits for nobody.
      const auto begin = is_open || queued.was_open ? now : last_end_;
      queued.was_open = is_open;
      if (begin + queued.timeout > queued.deadline) {
        queued.deadline = begin + queued.timeout;
        queued.next_inquiry = inquiry_time(queued.deadline, queued.timeout);
      }
      if (now >= queued.next_inquiry) {
        queued.next_inquiry = Clock::time_point::max();
        is_inquiry_due = true;
      }
      if (now < queued.deadline || overdue) return;
      late = queued.fingerprint;
      late.sequence = sequence;
      label = queued.label;
      overdue = queued.timeout;
    };
    for (std::size_t i = 0; i < queue_.size(); ++i) look(*queue_[i], running.sequence + 1 + i);
    for (const auto& [name, aside] : aside_) {
      look(*aside, 0);
      if (announced_.name == 0 || now < aside->next_stall) continue;
      const auto waited = std::chrono::round<std::chrono::seconds>(now - aside->since);
      aside->next_stall = now + (now - aside->since);
      stalled.push_back(aside->fingerprint.describe() + " has taken " + seconds(waited) +
                        " and goes on: " + reason_for_waiting_aside() + ".");
    }
    if (overdue && late.sequence == 0 && announced_.name != 0) aside_reason = reason_for_waiting_aside();
  }
  for (const std::string& line : stalled) log(LogLevel::kWarning, without_tag(members_.prefix()) + line);
  // Whom it waits for is whom the one under way waits for.
  if (is_inquiry_due) inquire(running.sequence);
  if (!overdue) return;
  const std::string what =
      late.describe() + (label ? " (" + label() + ")" : "") + " timed out after " + seconds(*overdue) + ": ";
  const std::string reason = !aside_reason.empty() ? aside_reason
                                                   : "it waits for the end of " + running.describe() + ": " +
                                                         verdict_for(active_ ? active_->awaited() : -1);
  fail(std::make_exception_ptr(TimeoutError(members_.prefix() + what + reason + ".")), Tell::kEveryone);
}

// On this host, a rank that has left published all it ever will before it said so: what is not there now never comes.
// What a rank on another host sent may still be on its way, until its streams have ended.
bool Engine::check_departed(Collective& collective) {
  if (collective.scheduler.poll()) return true;
  for (const Scheduler::Wait& wait : collective.scheduler.waits()) {
    if (wait.peer < 0 || may_still_send(wait.peer)) continue;
    {
      const std::lock_guard lock(mutex_);
      const auto found = left_.find(wait.peer);
      if (found == left_.end()) continue;
    }
    collective.scheduler.fail(
        std::make_exception_ptr(PeerLostError(members_.prefix() + collective.describe() +
                                                  " cannot finish: " + members_.who(wait.peer) + left_reason(wait.peer),
                                              {wait.peer})));
    return true;
  }
  return false;
}

bool Engine::may_still_send(int rank) const {
  const auto& link = links_[static_cast<std::size_t>(rank)];
  return link && !link->is_broken();
}

std::string Engine::left_reason(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = left_.find(rank);
  if (found == left_.end() || found->second.empty()) {
    return " has left the group: its program ended, or called shutdown().";
  }
  return " has left the group: " + found->second;
}

void Engine::check_suspects(Clock::time_point now) {
  for (auto it = suspects_.begin(); it != suspects_.end(); ++it) {
    if (it->second.first > now) continue;
    const int rank = it->first;
    const std::string text = members_.prefix() + "lost the connection to " + members_.who(rank) + ": " +
                             it->second.second + ". " + in_flight();
    suspects_.erase(it);
    fail(std::make_exception_ptr(PeerLostError(text, {rank})), Tell::kEveryone);
    return;
  }
}

void Engine::fail_other_groups(const Failure& failure) {
  std::uint64_t caller = 0;
  {
    const std::lock_guard lock(mutex_);
    caller = last_caller_;
  }
  const int world_rank = members_.world_rank(members_.rank);
  const Failure here{failure.kind, members_.prefix() + without_tag(failure.text), failure.lost};
  const std::optional<ThreadWait> meeting = meeting_of(world_rank, {});
  if (meeting && meeting->replaces(members_.name)) break_wait(meeting->id, here.exception());
  const std::optional<ThreadWait> wait = wait_of(caller);
  if (!wait || wait->has_other_threads || !is_only_caller(world_rank, caller)) return;
  if (wait->operation == nullptr) {
    break_wait(wait->id, here.exception());
    return;
  }
  look_at_engines([&](Engine& other) {
    if (&other == this || !other.place_of(wait->operation)) return false;
    const Failure own{failure.kind, other.members_.prefix() + without_tag(failure.text), failure.lost};
    other.fail(own.exception(), Tell::kEveryoneAndBeyond);
    return true;
  });
}

// On one host every rank compares itself with all others before an operation ends, so all of them find a mismatch.
// Between hosts a rank may have ended its part of a broadcast, say, before it can be told, and counts that differ are
// known to two ranks only: that closes the group. So does a mismatch of calls by name: ranks may have set others aside,
// or be asking which is next.
bool Engine::is_for_all(const Collective& collective, const std::exception_ptr& error) const {
  if (collective.is_by_name || collective.announced_name) return false;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return false;
  }
  const bool is_one_host = members_.hosts.size() == 1;
  try {
    std::rethrow_exception(error);
  } catch (const CountMismatch&) {
    return is_one_host;
  } catch (const MismatchError&) {
    return is_one_host || needs_every_rank(collective.fingerprint.kind);
  } catch (...) {
    return false;
  }
}

std::exception_ptr Engine::error_of(const Collective& collective) const {
  const std::exception_ptr error = collective.scheduler.error();
  if (!error) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    const std::string lacking = without_tag(shortage("malloc", collective.describe(), ENOMEM).what());
    return std::make_exception_ptr(ShortageError(members_.prefix() + lacking));
  } catch (...) {
    return error;
  }
}

void Engine::end_failed(const Collective& collective, const std::exception_ptr& error) {
  if (!is_for_all(collective, error)) return fail(error, Tell::kEveryone);
  board_.give_up();
  if (members_.hosts.size() > 1) {
    const std::string text = without_tag(Failure::of(error).text);
    const bool is_new = refused_.try_emplace(collective.fingerprint.sequence, text).second;
    if (is_new && control_) control_->refuse(collective.fingerprint.sequence, text);
  }
  const std::lock_guard lock(mutex_);
  is_given_up_ = true;
}

void Engine::on_refused(std::uint64_t sequence, const std::string& text) {
  if (!refused_.try_emplace(sequence, text).second) return;
  Fingerprint last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  const bool has_entered = board_.operation().sequence >= sequence;
  if (sequence > last.sequence || (active_ && !has_entered)) return;  // it will fail as it begins
  const bool is_under_way = active_ && sequence == last.sequence;
  const std::string what = is_under_way ? active_->describe() + " failed: " : "";
  const auto error = std::make_exception_ptr(MismatchError(members_.prefix() + what + text));
  is_under_way ? active_->scheduler.fail(error) : fail(error, Tell::kEveryone);
}

void Engine::on_mismatch(std::uint64_t sequence, std::exception_ptr error) {
  const bool is_under_way = active_ && active_->fingerprint.sequence == sequence;
  is_under_way ? active_->scheduler.fail(std::move(error)) : fail(std::move(error), Tell::kEveryone);
}

void Engine::fail(std::exception_ptr error, Tell whom) {
  Failure failure = Failure::of(error);
  failure.is_deadlock = whom == Tell::kEveryoneAndBeyond;
  {
    const std::lock_guard lock(mutex_);
    for (const int rank : failure.lost) dead_.try_emplace(rank, error);
    if (error_) return;
    error_ = std::move(error);
    if (whom != Tell::kNobody) untold_ = std::move(failure);
    stop_.store(true);
  }
  wake_caller();
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_)] {
    if (alive.expired() || !control_) return;
    tell_failure();
    fail_everything();
  });
}

// Whoever comes first: a program that has seen the error may shut down before the thread that failed has asked for
// this.
void Engine::tell_failure() {
  std::optional<Failure> failure;
  {
    const std::lock_guard lock(mutex_);
    failure.swap(untold_);
  }
  if (failure) control_->abort(*failure);
}

void Engine::fail_everything() {
  std::exception_ptr error;
  std::deque<std::unique_ptr<Collective>> queued;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
    queued.swap(queue_);
    for (auto& [name, collective] : aside_) queued.push_back(std::move(collective));
    aside_.clear();
  }
  for (const auto& link : links_) {
    if (link) link->reset();  // before any coroutine frame goes: nothing may write into its buffers
  }
  mailbox_->fail(error);
  if (active_) {
    active_->scheduler.fail(error);
    poll_collective();
  }
  for (const auto& collective : queued) collective->handle->complete(error);
}

void Engine::on_abort(const Failure& failure) {
  Failure own{failure.kind, members_.prefix(), failure.lost};
  {
    const std::lock_guard lock(mutex_);
    if (driver_ != Driver::kNone) own.text += last_.describe() + " failed: ";
  }
  own.text += without_tag(failure.text);
  if (failure.is_deadlock) fail_other_groups(failure);
  fail(own.exception(), Tell::kNobody);
}

void Engine::on_left(int rank, const std::string& reason) {
  suspects_.erase(rank);
  {
    const std::lock_guard lock(mutex_);
    std::string& known = left_[rank];
    if (!reason.empty()) known = reason;
    stop_.store(true);
  }
  wake_caller();
}

void Engine::on_broken(int rank, const std::string& reason) {
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    expected = left_.count(rank) != 0 || left_.count(0) != 0;
  }
  if (!expected) {
    suspects_.try_emplace(rank, Clock::now() + kSuspicion, reason);
  } else if (rank != 0) {
    on_left(rank, "");  // rank 0 is gone, so nobody relays goodbyes any more
  }
}

void Engine::abort(const std::string& reason) {
  if (ForkGuard::in_forked_child(fork_generation_)) return;
  fail(std::make_exception_ptr(ClosedError(members_.prefix() + "aborted: " + reason)), Tell::kEveryone);
}

std::exception_ptr Engine::error() const {
  if (const std::exception_ptr inherited = inherited_error()) return inherited;
  const std::lock_guard lock(mutex_);
  return error_;
}

std::exception_ptr Engine::obstacle() const {
  if (const std::exception_ptr failure = error()) return failure;
  std::vector<int> everybody(static_cast<std::size_t>(members_.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return departure_of(everybody);
}

std::exception_ptr Engine::death_of(const std::vector<int>& ranks) const {
  if (const std::exception_ptr inherited = inherited_error()) return inherited;
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks) {
    if (const auto found = dead_.find(rank); found != dead_.end()) return found->second;
  }
  return nullptr;
}

std::exception_ptr Engine::departure_of(const std::vector<int>& ranks) const {
  int gone = -1;
  {
    const std::lock_guard lock(mutex_);
    for (const int rank : ranks) {
      if (gone < 0 && left_.count(rank) != 0) gone = rank;
    }
  }
  if (gone < 0) return nullptr;
  return std::make_exception_ptr(PeerLostError(members_.prefix() + members_.who(gone) + left_reason(gone), {gone}));
}

void Engine::shutdown(const std::string& reason) {
  if (ForkGuard::in_forked_child(fork_generation_)) return;
  {
    std::unique_lock lock(mutex_);
    if (removed_) return;
    removed_ = true;
    if (!error_) {
      error_ = std::make_exception_ptr(ClosedError(members_.prefix() + "group '" + members_.name + "' was shut down."));
    }
    stop_.store(true);
  }
  wake_caller();
  progress_->run([&] {
    tell_failure();
    fail_everything();
    control_->leave(reason);
    control_.reset();
    links_.clear();
    links_.resize(static_cast<std::size_t>(members_.size));
    progress_->remove(this);
    const std::lock_guard lock(mutex_);  // look_for_deadlock() comes from any thread
    alive_token_.reset();
  });
  trace::finish();
  // A caller that drives sees the error and ends; its buffers and the board must outlive it. If it is this thread, in a
  // signal handler, that is after the handler.
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return driver_ != Driver::kCaller || caller_ == std::this_thread::get_id(); });
}

}  // namespace smdp
