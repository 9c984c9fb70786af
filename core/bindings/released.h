// Runs C++ without the GIL and counts the threads that do, so that the end of the program can wait for them.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <thread>

#include "smdp/error.h"

namespace smdp {

// Replaces nanobind's gil_scoped_release. Python ends a daemon thread that takes the GIL during shutdown, and the C++
// on that thread's stack would treat this as an uncaught error.
class Released {
 public:
  // Returns the number of threads without the GIL.
  static int count() { return inside().load(); }
  // Marks the calling thread as the one that ends the program. From now on, other threads that try to release the GIL
  // get a ClosedError.
  static void end() { last().store(std::this_thread::get_id()); }
  // For a forked child, which has none of its parent's threads.
  static void forget() {
    inside().store(0);
    last().store(std::thread::id());
  }

 private:
  struct Counted {
    Counted() {
      const std::thread::id ender = last().load();
      if (ender != std::thread::id() && ender != std::this_thread::get_id()) {
        throw ClosedError("[smdp] the program is ending, and smdp has already shut down.");
      }
      ++inside();
    }
    ~Counted() { --inside(); }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
  };
  static std::atomic<int>& inside() {
    static std::atomic<int> number{0};
    return number;
  }
  // Returns the thread that ends the program.
  static std::atomic<std::thread::id>& last() {
    static std::atomic<std::thread::id> thread{};
    return thread;
  }

  Counted counted_;  // first, so that the thread counts until it has the GIL again
  nanobind::gil_scoped_release release_;
};

}  // namespace smdp
