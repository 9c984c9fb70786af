// C++ that runs without Python's lock, and how many threads do: who ends the program waits for them.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <thread>

#include "smdp/error.h"

namespace smdp {

// Guards of one kind: in place of nanobind's gil_scoped_release. Python ends a daemon thread that wants its lock back
// while it shuts down, and the C++ on that thread's stack takes this for an error that nobody catches.
class Released {
 public:
  // Threads without the lock.
  static int count() { return inside().load(); }
  // The calling thread ends the program: from here on no other lets go of it any more, but gets a ClosedError.
  static void end() { last().store(std::this_thread::get_id()); }
  // A forked child has none of its parent's threads.
  static void forget() {
    inside().store(0);
    last().store(std::thread::id());
  }

 private:
  struct Counted {
    Counted() {
      const std::thread::id ender = last().load();
      if (ender != std::thread::id() && ender != std::this_thread::get_id()) {
        throw ClosedError("[smdp] this program is about to end, and smdp has shut down.");
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
  // The thread that ends the program.
  static std::atomic<std::thread::id>& last() {
    static std::atomic<std::thread::id> thread{};
    return thread;
  }

  Counted counted_;  // first: the thread is there until it has the lock again
  nanobind::gil_scoped_release release_;
};

}  // namespace smdp
