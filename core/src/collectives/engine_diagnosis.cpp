// Who is late to a collective, and what it waits for instead.
#include <algorithm>
#include <optional>
#include <utility>

#include "collectives/engine.h"
#include "collectives/registry.h"
#include "common/failure.h"
#include "common/log.h"

namespace smdp {
namespace {

// An operation this old asks what the others are in: ranks that wait for each other in different ones never meet. It
// asks again when it is twice, four times ... as old: what they wait for in other groups comes later.
constexpr std::chrono::seconds kEarlyInquiry{1};
constexpr std::chrono::seconds kMostBetweenInquiries{8};
// Who makes a group for longer than this, with ranks that wait for the maker, has not seen them come.
constexpr std::chrono::seconds kMeeting{2};
// Within which the answer to an inquiry is there.
constexpr auto kAnswer = Control::kInquiry + std::chrono::milliseconds(300);

// FNV-1a; never 0.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash | 1;
}

}  // namespace

Clock::time_point Engine::inquiry_time(Clock::time_point deadline, std::chrono::milliseconds timeout) {
  return deadline - std::min<std::chrono::milliseconds>(kAnswer, timeout / 2);
}

void Engine::set_looks(Collective& collective) const {
  collective.next_inquiry =
      std::min(collective.since + kEarlyInquiry, inquiry_time(collective.deadline, collective.timeout));
  collective.next_stall =
      options_.stall_time.count() == 0 ? Clock::time_point::max() : collective.since + options_.stall_time;
}

void Engine::check_inquiry(Collective& collective, Clock::time_point now) {
  if (now < collective.next_inquiry) return;
  const auto final_one = inquiry_time(collective.deadline, collective.timeout);
  const auto pause = std::clamp<Clock::duration>(now - collective.since, kEarlyInquiry, kMostBetweenInquiries);
  collective.next_inquiry = now < final_one ? std::min(now + pause, final_one) : Clock::time_point::max();
  inquire(collective.fingerprint.sequence);
}

void Engine::check_stall(Collective& collective, Clock::time_point now) {
  if (now < collective.next_stall) return;
  if (!collective.is_stall_inquired) {
    collective.is_stall_inquired = true;
    collective.next_stall = now + kAnswer;
    inquire(collective.fingerprint.sequence);
    return;
  }
  collective.is_stall_inquired = false;
  const auto waited = std::chrono::round<std::chrono::seconds>(now - collective.since);
  collective.next_stall = now + waited - kAnswer;
  log(LogLevel::kWarning, without_tag(members_.prefix()) + collective.describe() + " has taken " + seconds(waited) +
                              " and goes on: " + verdict_for(collective.awaited()) + ".");
}

void Engine::check_late(Collective& collective, Clock::time_point now) {
  if (!collective.is_late() || options_.stall_time.count() == 0) return;
  if (!collective.next_late_line) collective.next_late_line = collective.began + options_.stall_time;
  if (now < *collective.next_late_line) return;
  const auto waited = std::chrono::round<std::chrono::seconds>(now - collective.began);
  collective.next_late_line = now + waited;
  log(LogLevel::kWarning, without_tag(members_.prefix()) + collective.describe() + " has waited " + seconds(waited) +
                              " for values of this rank, which have not left their device.");
}

std::string Engine::in_flight() const {
  const std::lock_guard lock(mutex_);
  if (last_.kind == OpKind::kNone) return "No operation was in flight.";
  return (driver_ == Driver::kNone ? "Idle; the last operation was " : "In ") + last_.describe() + ".";
}

Control::Status Engine::status() {
  Control::Status status;
  std::uint64_t caller = 0;
  {
    const std::lock_guard lock(mutex_);
    status.last = last_;
    status.has_given_up = is_given_up_;
    status.busy = driver_ != Driver::kNone;
    status.called = last_.sequence + queue_.size();
    if (announced_.name == 0) status.called += aside_.size();  // else the next one is none of them
    caller = last_caller_;
  }
  const int world_rank = members_.world_rank(members_.rank);
  const std::optional<ThreadWait> wait = wait_of(caller);
  // A framework's own threads may call operations for one that makes a group now.
  const std::optional<ThreadWait> meeting = wait ? std::nullopt : meeting_of(world_rank, kEarlyInquiry);
  if (wait && place_of(wait->operation)) {
    status.wait = wait->id;
  } else {
    status.other_wait = other_wait(meeting ? meeting : wait);
  }
  const bool is_certain = !meeting && is_only_caller(world_rank, caller) && !(wait && wait->has_other_threads);
  if (!is_certain) status.wait = 0;
  if (!is_certain && !status.other_wait.replaces_this) status.other_wait.wait = 0;
  return status;
}

std::optional<Control::OtherWait> Engine::place_of(const Operation* operation) const {
  const std::lock_guard lock(mutex_);
  if (operation == nullptr) return std::nullopt;
  Fingerprint fingerprint = last_;
  if (operation != running_) {
    const auto queued = std::find_if(queue_.begin(), queue_.end(),
                                     [operation](const auto& one) { return one->handle.get() == operation; });
    const auto aside = std::find_if(aside_.begin(), aside_.end(),
                                    [operation](const auto& one) { return one.second->handle.get() == operation; });
    if (queued == queue_.end() && aside == aside_.end()) return std::nullopt;
    const Collective& waiting = queued == queue_.end() ? *aside->second : **queued;
    if (!is_patient(waiting)) return std::nullopt;
    fingerprint = waiting.fingerprint;
    fingerprint.sequence =
        queued == queue_.end() ? 0 : last_.sequence + 1 + static_cast<std::uint64_t>(queued - queue_.begin());
  }
  Control::OtherWait place;
  place.what = "it waits in " + fingerprint.describe() + " of group '" + members_.name + "'";
  if (verdict_.sequence == last_.sequence) place.awaited = verdict_.awaited;
  return place;
}

Control::OtherWait Engine::other_wait(const std::optional<ThreadWait>& wait) {
  Control::OtherWait found;
  if (wait && wait->operation == nullptr) {
    found.wait = wait->id;
    const bool is_of_all =
        wait->size == members_.size && (members_.world_ranks.empty() || wait->group.rfind(members_.name + "/", 0) == 0);
    const bool is_long = Clock::now() - wait->since > kMeeting;
    found.is_for_all = is_of_all && is_long;
    found.meeting = hash_of(wait->group);
    look_at_engines([&](Engine& other) {
      found.made.push_back(hash_of(other.members_.name));
      return false;
    });
    std::reverse(found.made.begin(), found.made.end());  // the newest first
    found.replaces_this = wait->replaces(members_.name) && is_long;
    found.what = "it makes group " + quoted(wait->group, wait->purpose) + ", to which all its ranks must come";
  } else if (wait) {
    look_at_engines([&](Engine& other) {
      std::optional<Control::OtherWait> place = &other == this ? std::nullopt : other.place_of(wait->operation);
      if (!place) return false;
      found = std::move(*place);
      found.wait = wait->id;
      return true;
    });
  } else {
    // Frameworks that never block a thread: what has not ended may be what it waits for.
    look_at_engines([&](Engine& other) {
      if (&other == this || members_.world_rank(members_.rank) != other.members_.world_rank(other.members_.rank)) {
        return false;
      }
      const std::lock_guard lock(other.mutex_);
      if (other.running_ == nullptr || Clock::now() - other.running_->began() < kEarlyInquiry) return false;
      found.what = other.last_.describe() + " of group '" + other.members_.name + "' is under way there";
      return true;
    });
  }
  return found;
}

void Engine::look_for_deadlock() {
  std::weak_ptr<Operation> alive;
  {
    const std::lock_guard lock(mutex_);
    alive = alive_token_;
  }
  progress_->post([this, alive = std::move(alive)] {
    if (!alive.expired() && control_) control_->inquire(0, [](const Control::Verdict&) {});
  });
}

void Engine::inquire(std::uint64_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    if (inquired_ != sequence) verdict_ = {sequence, "", {}};
    inquired_ = sequence;
    if (!unanswered_since_) unanswered_since_ = Clock::now();
  }
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_), sequence] {
    if (alive.expired() || !control_) return;
    control_->inquire(sequence, [this](const Control::Verdict& verdict) {
      const std::lock_guard lock(mutex_);
      if (verdict.sequence == inquired_) verdict_ = verdict;
      unanswered_since_.reset();
    });
  });
}

std::string Engine::verdict_for(int peer, const char* undone) const {
  const std::lock_guard lock(mutex_);
  const bool is_silent = unanswered_since_ && Clock::now() - *unanswered_since_ >= Control::kInquiry;
  if (is_silent && members_.rank != 0) {
    const bool has_left = left_.contains(0);
    return members_.who(0) + (has_left ? " has left the group" : " does not answer: stopped, or its machine hangs");
  }
  if (!verdict_.text.empty()) return verdict_.text;
  const std::string answers = unanswered_since_ ? "" : "answers, but ";
  if (peer >= 0) return "waiting for " + members_.who(peer) + ", which " + answers + undone;
  return unanswered_since_ ? "which rank is late is not known yet" : "all ranks answer";
}

}  // namespace smdp
