// Ctrl-C during long waits in C++: looked for in slices, in the thread that Python's signals belong to.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "bind.h"
#include "smdp/error.h"
#include "smdp/store.h"

namespace smdp {

// The error is set in Python here, and thrown by the translator of bindings/error.cpp. Without the GIL.
inline bool is_interrupted() {
  const nanobind::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// Calls attempt(milliseconds) with slices of `timeout` until one ends without a TimeoutError, or the last one with it.
template <class Attempt>
auto in_slices(std::chrono::milliseconds timeout, Attempt attempt) {
  constexpr std::chrono::milliseconds kSlice{1000};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= kSlice) return attempt(std::max(left, std::chrono::milliseconds(1)));
    try {
      return attempt(kSlice);
    } catch (const TimeoutError&) {
      if (is_interrupted()) throw ClosedError("[smdp] interrupted.");
    }
  }
}

// A store whose waits can be interrupted, for the time in which a group is made.
class InterruptibleStore final : public Store {
 public:
  explicit InterruptibleStore(std::shared_ptr<Store> base) : base_(std::move(base)) {}

  void set(const std::string& key, const std::string& value) override { base_->set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    try {
      return in_slices(timeout, [&](std::chrono::milliseconds slice) { return base_->get(key, slice); });
    } catch (const TimeoutError&) {
      // Of the last slice; a store that does not answer says so again.
      if (base_->check(key)) return base_->get(key, timeout);
      throw TimeoutError("[smdp] the store has no '" + key + "' after " + std::to_string(timeout.count()) + " ms.");
    }
  }
  bool check(const std::string& key) override { return base_->check(key); }

 private:
  const std::shared_ptr<Store> base_;
};

}  // namespace smdp
