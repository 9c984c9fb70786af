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
  bool is_known = false;           // it has proved the secret
  std::atomic<bool> ended{false};  // nothing but joining its thread is left
};

// How many strangers this process should bear at a time.
std::size_t most_strangers();

// All below: under the mutex that guards the sessions, is_known and moves of their sockets.

// If there is none, hangs up on strangers that have been silent for long.
bool has_room_for_strangers(std::list<Session>& sessions, std::size_t most);
void forget_ended(std::list<Session>& sessions);

}  // namespace smdp
