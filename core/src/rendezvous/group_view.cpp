#include "rendezvous/group_view.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/open_files.h"
#include "smdp/error.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kFailure[] = "failure";
constexpr milliseconds kLook{500};  // between two checks for a failure
constexpr milliseconds kAnswer{5000};

}  // namespace

GroupView::GroupView(std::shared_ptr<Store> base, const std::string& group, std::function<bool()> interrupted)
    : store_(make_prefix_store("smdp/" + group, std::move(base))), interrupted_(std::move(interrupted)) {}

void GroupView::set(const std::string& key, const std::string& value) { store_->set(key, value); }

std::string GroupView::get(const std::string& key, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  bool is_over = false;  // an interruption may also be a TimeoutError
  const auto interrupted = [&] {
    is_over = true;
    const bool is_interrupted = interrupted_();
    is_over = is_interrupted;
    return is_interrupted;
  };
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    try {
      const std::function<bool()> asked = interrupted_ ? std::function<bool()>(interrupted) : nullptr;
      return store_->get_unless(key, std::clamp(left, milliseconds(0), kLook), asked);
    } catch (const TimeoutError&) {
      if (is_over) throw;
      throw_failure();
      if (steady_clock::now() < deadline) continue;
    }
    throw TimeoutError("[smdp] the rendezvous store has no key '" + key + "' after " + std::to_string(timeout.count()) +
                       " ms.");
  }
}

std::string GroupView::get_unless(const std::string& key, milliseconds timeout,
                                  const std::function<bool()>& interrupted) {
  return store_->get_unless(key, timeout, interrupted);
}

bool GroupView::check(const std::string& key) { return store_->check(key); }

void GroupView::fail(const std::string& reason) {
  try {
    if (!store_->check(kFailure)) store_->set(kFailure, reason);
  } catch (const std::exception&) {
    // The store has ended, which the ranks waiting there detect.
  }
}

void GroupView::throw_failure() {
  throw_noted_shortage();
  if (store_->check(kFailure)) throw ShortageError(store_->get(kFailure, kAnswer));
}

}  // namespace smdp
