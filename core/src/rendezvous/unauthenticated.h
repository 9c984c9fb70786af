// Who calls a port of ours, and has not proved the job's secret yet, holds a descriptor and a thread. All of them
// together may have a part of the descriptors; then those that have been silent for long make room.
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
  std::string address;  // of the other end; a reset connection cannot tell any more
  std::thread thread;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  bool is_authenticated = false;   // it has proved the secret
  std::atomic<bool> ended{false};  // nothing but joining its thread is left
};

// How many unauthenticated peers this process should bear at a time.
std::size_t most_unauthenticated();

// All below: under the mutex that guards the sessions, is_authenticated and moves of their sockets.

// If there is none, hangs up on unauthenticated peers that have been silent for long.
bool has_room_for_unauthenticated(std::list<Session>& sessions, std::size_t most);
void forget_ended(std::list<Session>& sessions);

}  // namespace smdp
