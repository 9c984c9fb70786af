// A peer that has connected but not yet proved the job's secret holds a descriptor and a thread. All such peers
// together may use a part of the descriptors; beyond that, those that have long been silent are closed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <thread>

#include "common/file_descriptor.h"

namespace smdp {

struct Session {
  FileDescriptor socket;
  std::string address;  // of the other end, stored because a reset connection no longer reports it
  std::thread thread;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  bool is_authenticated = false;   // whether the peer has proved the secret
  std::atomic<bool> ended{false};  // whether only its thread remains to be joined
};

// Returns how many unauthenticated peers this process should tolerate at a time.
std::size_t most_unauthenticated();

// All functions below are called with the mutex that guards the sessions, is_authenticated and moves of their sockets.

// Returns whether there is room. If not, closes the connections of unauthenticated peers that have long been silent.
bool has_room_for_unauthenticated(std::list<Session>& sessions, std::size_t most);
void forget_ended(std::list<Session>& sessions);

}  // namespace smdp
