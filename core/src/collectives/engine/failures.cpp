#include "collectives/engine/failures.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "common/fork_guard.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// Time between the break of a data stream and blaming its peer: the control connection gives the true reason, but may
// need its keepalive time.
constexpr std::chrono::milliseconds kSuspicion{4500};

}  // namespace

Failures::Failures(const Members& members, Callbacks callbacks)
    : members_(members), callbacks_(std::move(callbacks)), fork_generation_(ForkGuard::generation()) {}

void Failures::fail(std::exception_ptr error, Tell whom) {
  Failure failure = Failure::of(error);
  failure.is_deadlock = whom == Tell::kEveryoneAndBeyond;
  {
    const Lock lock(mutex_);
    for (const int rank : failure.lost) dead_.try_emplace(rank, error);
    if (error_) return;
    error_ = std::move(error);
    if (whom != Tell::kNobody) untold_ = std::move(failure);
    is_news_.store(true);
  }
  callbacks_.wake();
  callbacks_.on_failure();
}

bool Failures::close() {
  {
    const Lock lock(mutex_);
    if (is_closed_) return false;
    is_closed_ = true;
    if (!error_) {
      error_ = std::make_exception_ptr(ClosedError(members_.prefix() + "group '" + members_.name + "' was shut down."));
    }
    is_news_.store(true);
  }
  callbacks_.wake();
  return true;
}

std::optional<Failure> Failures::take_untold() {
  const Lock lock(mutex_);
  return std::exchange(untold_, std::nullopt);
}

std::exception_ptr Failures::error() const {
  if (const std::exception_ptr inherited = inherited_error()) return inherited;
  if (!is_news()) return nullptr;
  const Lock lock(mutex_);
  return error_;
}

void Failures::check_usable() const {
  if (const std::exception_ptr why = error()) std::rethrow_exception(why);
}

bool Failures::is_inherited() const { return ForkGuard::in_forked_child(fork_generation_); }

std::exception_ptr Failures::inherited_error() const {
  if (!is_inherited()) return nullptr;
  return std::make_exception_ptr(
      ClosedError("[smdp] this process is a forked child of rank " +
                  std::to_string(members_.world_rank(members_.rank)) + " and cannot use its group '" + members_.name +
                  "'. Communicate in the parent, or start the child with spawn and its own smdp.init()."));
}

std::exception_ptr Failures::obstacle() const {
  if (const std::exception_ptr failure = error()) return failure;
  std::vector<int> all_ranks(static_cast<std::size_t>(members_.size));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  return departure_of(all_ranks);
}

std::exception_ptr Failures::death_of(const std::vector<int>& ranks) const {
  if (const std::exception_ptr inherited = inherited_error()) return inherited;
  const Lock lock(mutex_);
  for (const int rank : ranks) {
    if (const auto found = dead_.find(rank); found != dead_.end()) return found->second;
  }
  return nullptr;
}

std::exception_ptr Failures::departure_of(const std::vector<int>& ranks) const {
  int gone = -1;
  {
    const Lock lock(mutex_);
    for (const int rank : ranks) {
      if (gone < 0 && left_.count(rank) != 0) gone = rank;
    }
  }
  if (gone < 0) return nullptr;
  return std::make_exception_ptr(PeerLostError(members_.prefix() + members_.who(gone) + left_reason(gone), {gone}));
}

bool Failures::has_left(int rank) const {
  const Lock lock(mutex_);
  return left_.contains(rank);
}

std::vector<int> Failures::left() const {
  const Lock lock(mutex_);
  std::vector<int> ranks;
  for (const auto& [rank, reason] : left_) ranks.push_back(rank);
  return ranks;
}

std::string Failures::left_reason(int rank) const {
  const Lock lock(mutex_);
  const auto found = left_.find(rank);
  if (found == left_.end() || found->second.empty()) {
    return " has left the group: its program ended, or called shutdown().";
  }
  return " has left the group: " + found->second;
}

void Failures::on_left(int rank, const std::string& reason) {
  suspects_.erase(rank);
  {
    const Lock lock(mutex_);
    std::string& known = left_[rank];
    if (!reason.empty()) known = reason;
    is_news_.store(true);
  }
  callbacks_.wake();
}

void Failures::on_broken(int rank, const std::string& reason) {
  bool expected = false;
  {
    const Lock lock(mutex_);
    if (error_) return;
    expected = left_.count(rank) != 0 || left_.count(0) != 0;
  }
  if (!expected) {
    suspects_.try_emplace(rank, Clock::now() + kSuspicion, reason);
  } else if (rank != 0) {
    on_left(rank, "");  // rank 0 is gone, so departures are no longer relayed
  }
}

void Failures::check_suspects(Clock::time_point now) {
  for (auto it = suspects_.begin(); it != suspects_.end(); ++it) {
    if (it->second.first > now) continue;
    const int rank = it->first;
    const std::string text = members_.prefix() + "lost the connection to " + members_.who(rank) + ": " +
                             it->second.second + ". " + callbacks_.in_flight();
    suspects_.erase(it);
    fail(std::make_exception_ptr(PeerLostError(text, {rank})), Tell::kEveryone);
    return;
  }
}

Clock::time_point Failures::deadline() const {
  Clock::time_point first = Clock::time_point::max();
  for (const auto& [rank, suspect] : suspects_) first = std::min(first, suspect.first);
  return first;
}

}  // namespace smdp
