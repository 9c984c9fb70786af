#include "transport/answers.h"

#include <algorithm>
#include <chrono>

namespace smdp {
namespace {

// A rank that was stopped and resumed briefly reports an old wait, but not for this long.
constexpr std::chrono::seconds kSeparate{4};

bool contains(const std::vector<std::uint64_t>& list, std::uint64_t wait) {
  return std::find(list.begin(), list.end(), wait) != list.end();
}

}  // namespace

Answers::Answers(const Members& members) : members_(members) {}

void Answers::restart(Control::Status own) {
  const auto size = static_cast<std::size_t>(members_.size);
  answered_.assign(size, false);
  statuses_.assign(size, {});
  add(0, std::move(own));
}

void Answers::add(int rank, Control::Status status) {
  const auto index = static_cast<std::size_t>(rank);
  answered_[index] = true;
  statuses_[index] = std::move(status);
}

bool Answers::are_complete() const { return std::find(answered_.begin(), answered_.end(), false) == answered_.end(); }

Control::Verdict Answers::verdict(std::uint64_t sequence, const std::vector<bool>& has_left) const {
  std::vector<int> silent;
  std::vector<int> gone;
  std::string behind;
  std::vector<std::uint64_t> awaited;
  for (int rank = 0; rank < members_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (!answered_[index]) {
      (has_left[index] ? gone : silent).push_back(rank);
    } else if (statuses_[index].last.sequence < sequence) {
      const Control::Status& status = statuses_[index];
      std::string now = status.last.sequence == 0
                            ? "it has called no collective yet"
                            : (status.busy ? "it is in " : "its last one was ") + status.last.describe();
      if (!status.other_wait.what.empty()) now += ", and " + status.other_wait.what;
      const bool is_called = status.called >= sequence;
      behind += (behind.empty() ? "" : "; ") + members_.who(rank) + " has not " + (is_called ? "begun" : "called") +
                " it: " + now;
      if (is_called || status.other_wait.wait == 0) continue;
      awaited.push_back(status.other_wait.wait);
      awaited.insert(awaited.end(), status.other_wait.awaited.begin(), status.other_wait.awaited.end());
    }
  }
  std::string text;
  if (!silent.empty()) {
    text = members_.who(silent) + (silent.size() == 1 ? " does not answer: it is stopped, or its machine hangs"
                                                      : " do not answer: they are stopped, or their machines hang");
  }
  if (!gone.empty()) {
    text += (text.empty() ? "" : "; ") + members_.who(gone) + (gone.size() == 1 ? " has" : " have") + " left the group";
  }
  if (!behind.empty()) text += (text.empty() ? "" : "; ") + behind;
  return {sequence, text, awaited};
}

std::pair<std::uint64_t, std::string> Answers::mismatch() const {
  if (members_.hosts.size() == 1) return {};  // ranks that share memory compare their calls directly
  for (std::size_t second = 1; second < statuses_.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const Fingerprint& a = statuses_[first].last;
      const Fingerprint& b = statuses_[second].last;
      if (a.sequence != b.sequence || a.matches(b)) continue;
      if (statuses_[first].has_given_up || statuses_[second].has_given_up) continue;
      return {a.sequence,
              describe_mismatch(members_.who(static_cast<int>(first)), a, members_.who(static_cast<int>(second)), b)};
    }
  }
  return {};
}

// Finds a rank that has not called the operation in which another rank waits, and itself waits elsewhere for that rank.
std::string Answers::deadlock() const {
  for (std::size_t away = 0; away < statuses_.size(); ++away) {
    const Control::OtherWait& other_wait = statuses_[away].other_wait;
    if (other_wait.wait == 0) continue;
    for (std::size_t here = 0; here < statuses_.size(); ++here) {
      const Control::Status& status = statuses_[here];
      if (statuses_[away].called >= status.last.sequence) continue;
      const bool is_awaited = other_wait.is_for_all || contains(other_wait.awaited, status.wait);
      if (!(status.wait != 0 && is_awaited) && !(status.busy && other_wait.replaces_this)) continue;
      return members_.who(static_cast<int>(here)) + " waits in " + status.last.describe() + " of group '" +
             members_.name + "', which " + members_.who(static_cast<int>(away)) +
             " has not called: " + other_wait.what +
             ". Neither can end before the other. All ranks must call the same operations and make "
             "the same training steps, in the same order.";
    }
  }
  return "";
}

std::string Answers::separate_meetings() {
  // A rank that does not answer may be what one of the two waits for.
  if (!are_complete()) return "";
  for (std::size_t second = 1; second < statuses_.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const Control::OtherWait& a = statuses_[first].other_wait;
      const Control::OtherWait& b = statuses_[second].other_wait;
      if (a.wait == 0 || b.wait == 0 || !a.is_for_all || !b.is_for_all || a.meeting == b.meeting) continue;
      // If one of the ranks has already made the group, the other may still wait in it for a third rank.
      if (contains(a.made, b.meeting) || contains(b.made, a.meeting)) continue;
      const std::pair<std::uint64_t, std::uint64_t> waits{a.wait, b.wait};
      if (separate_ != waits) {
        separate_ = waits;
        separate_since_ = Clock::now();
      }
      if (Clock::now() - separate_since_ < kSeparate) return "";
      return members_.who(static_cast<int>(first)) + " waits for " + members_.who(static_cast<int>(second)) + ": " +
             a.what + "; and that one waits as well: " + b.what +
             ". Neither can end before the other. All ranks must make the same groups and models, in the same order.";
    }
  }
  separate_ = {};
  return "";
}

}  // namespace smdp
