#include "collectives/engine/diagnosis.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "collectives/engine/engine.h"
#include "collectives/registry.h"
#include "common/failure.h"
#include "common/log.h"

namespace smdp {
namespace {

constexpr std::chrono::seconds kMostBetweenInquiries{8};
// A rank that makes a group for longer than this, with ranks that wait for it elsewhere, has not seen them join.
constexpr std::chrono::seconds kMeeting{2};

// Returns the FNV-1a hash; never 0.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash | 1;
}

}  // namespace

Diagnosis::Diagnosis(const Members& members, std::chrono::milliseconds stall_time, const CallQueue& queue,
                     const Failures& failures, const GroupThread& thread, Ask ask)
    : members_(members),
      stall_time_(stall_time),
      queue_(queue),
      failures_(failures),
      thread_(thread),
      ask_(std::move(ask)) {}

void Diagnosis::check(Collective& collective, Clock::time_point now) {
  check_inquiry(collective, now);
  check_stall(collective, now);
}

void Diagnosis::check_inquiry(Collective& collective, Clock::time_point now) {
  if (now < collective.next_inquiry) return;
  const auto final_one = collective.final_inquiry();
  const auto pause =
      std::clamp<Clock::duration>(now - collective.since, Collective::kEarlyInquiry, kMostBetweenInquiries);
  collective.next_inquiry = now < final_one ? std::min(now + pause, final_one) : Clock::time_point::max();
  inquire(collective.fingerprint.sequence);
}

void Diagnosis::check_stall(Collective& collective, Clock::time_point now) {
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
  log(LogLevel::kWarning, without_tag(members_.prefix()) + collective.describe() + " is still running after " +
                              seconds(waited) + ": " + verdict_for(collective.awaited()) + ".");
}

void Diagnosis::check_late(Collective& collective, Clock::time_point now) {
  if (!collective.is_late() || stall_time_.count() == 0) return;
  if (!collective.next_late_line) collective.next_late_line = collective.began + stall_time_;
  if (now < *collective.next_late_line) return;
  const auto waited = std::chrono::round<std::chrono::seconds>(now - collective.began);
  collective.next_late_line = now + waited;
  log(LogLevel::kWarning, without_tag(members_.prefix()) + collective.describe() + " has waited " + seconds(waited) +
                              " for this rank's values, which are still on their device.");
}

Control::Status Diagnosis::status() {
  Control::Status status;
  const std::uint64_t caller = queue_.describe(status);
  const int world_rank = members_.world_rank(members_.rank);
  const std::optional<ThreadWait> wait = wait_of(caller);
  // A framework's own threads may call operations for a thread that is making a group now.
  const std::optional<ThreadWait> meeting = wait ? std::nullopt : meeting_of(world_rank, Collective::kEarlyInquiry);
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

std::optional<Control::OtherWait> Diagnosis::place_of(const Operation* operation) const {
  const std::optional<CallQueue::Place> found = queue_.place_of(operation);
  if (!found) return std::nullopt;
  Control::OtherWait place;
  place.what = "it waits in " + found->operation.describe() + " of group '" + members_.name + "'";
  const Lock lock(mutex_);
  if (verdict_.sequence == found->under_way) place.awaited = verdict_.awaited;
  return place;
}

Control::OtherWait Diagnosis::other_wait(const std::optional<ThreadWait>& wait) {
  Control::OtherWait found;
  if (wait && wait->operation == nullptr) {
    found.wait = wait->id;
    const bool is_of_all =
        wait->size == members_.size && (members_.world_ranks.empty() || wait->group.rfind(members_.name + "/", 0) == 0);
    const bool is_long = Clock::now() - wait->since > kMeeting;
    found.is_for_all = is_of_all && is_long;
    found.meeting = hash_of(wait->group);
    look_at_engines([&](Engine& other) {
      found.made.push_back(hash_of(other.members().name));
      return false;
    });
    std::reverse(found.made.begin(), found.made.end());  // newest first
    found.replaces_this = wait->replaces(members_.name) && is_long;
    found.what = "it is creating group " + quoted(wait->group, wait->purpose) + ", which all its ranks must join";
  } else if (wait) {
    look_at_engines([&](Engine& other) {
      if (&other.diagnosis() == this) return false;
      std::optional<Control::OtherWait> place = other.diagnosis().place_of(wait->operation);
      if (!place) return false;
      found = std::move(*place);
      found.wait = wait->id;
      return true;
    });
  } else {
    // In frameworks that never block a thread, the rank may be waiting for an operation that has not ended.
    look_at_engines([&](Engine& other) {
      if (&other.diagnosis() == this) return false;
      if (members_.world_rank(members_.rank) != other.members().world_rank(other.members().rank)) return false;
      const std::string what = other.queue().under_way_for(Collective::kEarlyInquiry);
      if (what.empty()) return false;
      found.what = what + " of group '" + other.members().name + "' is running there";
      return true;
    });
  }
  return found;
}

void Diagnosis::look_for_deadlock() {
  thread_.post([this] { ask_(0, [](const Control::Verdict&) {}); });
}

void Diagnosis::inquire(std::uint64_t sequence) {
  {
    const Lock lock(mutex_);
    if (inquired_ != sequence) verdict_ = {sequence, "", {}};
    inquired_ = sequence;
    if (!unanswered_since_) unanswered_since_ = Clock::now();
  }
  thread_.post([this, sequence] {
    ask_(sequence, [this](const Control::Verdict& verdict) {
      const Lock lock(mutex_);
      if (verdict.sequence == inquired_) verdict_ = verdict;
      unanswered_since_.reset();
    });
  });
}

std::string Diagnosis::verdict_for(int peer, const char* undone) const {
  std::string text;
  std::optional<Clock::time_point> unanswered_since;
  {
    const Lock lock(mutex_);
    text = verdict_.text;
    unanswered_since = unanswered_since_;
  }
  const bool is_silent = unanswered_since && Clock::now() - *unanswered_since >= Control::kInquiry;
  if (is_silent && members_.rank != 0) {
    return members_.who(0) +
           (failures_.has_left(0) ? " has left the group" : " does not answer: it is stopped, or its machine hangs");
  }
  if (!text.empty()) return text;
  const std::string answers = unanswered_since ? "" : "answers, but ";
  if (peer >= 0) return "waiting for " + members_.who(peer) + ", which " + answers + undone;
  return unanswered_since ? "it is not known yet which rank is late" : "all ranks answer";
}

void Diagnosis::fail_other_groups(const Failure& failure) {
  const std::uint64_t caller = queue_.last_caller();
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
    if (&other.diagnosis() == this || !other.diagnosis().place_of(wait->operation)) return false;
    const Failure own{failure.kind, other.members().prefix() + without_tag(failure.text), failure.lost};
    other.failures().fail(own.exception(), Failures::Tell::kEveryoneAndBeyond);
    return true;
  });
}

}  // namespace smdp
