#include "rendezvous/memory_passing.h"

#include <cstring>
#include <utility>
#include <vector>

#include "common/hmac.h"
#include "rendezvous/acceptor.h"
#include "smdp/error.h"
#include "transport/handshake.h"
#include "transport/shm/fd_passing.h"

namespace smdp {
namespace {

constexpr char kSharing[] = "shared parameters";

MeetingPoint new_point() {
  MeetingPoint point;
  std::memcpy(point.name, random_bytes(sizeof point.name).data(), sizeof point.name);
  std::memcpy(point.secret, random_bytes(sizeof point.secret).data(), sizeof point.secret);
  return point;
}

std::string text(const unsigned char (&bytes)[MeetingPoint::kBytes]) {
  return to_hex({reinterpret_cast<const char*>(bytes), sizeof bytes});
}

std::string socket_name(const MeetingPoint& point) { return "smdp-" + text(point.name); }

}  // namespace

MemoryPassing::MemoryPassing(std::size_t bytes, const char* purpose)
    : mapping_(std::make_shared<SharedMapping>(bytes, purpose, SharedMapping::Pages::kAtOnce)),
      point_(new_point()),
      listener_(listen_local(socket_name(point_))) {}

void MemoryPassing::pass(std::size_t receivers, Deadline deadline, const Interrupted& interrupted) const {
  Acceptor::Setup setup;
  setup.listeners = {&listener_, 1};
  setup.name = [](const FileDescriptor& socket) { return "process " + std::to_string(local_peer(socket).process); };
  setup.greet = [descriptor = mapping_->descriptor(), secret = text(point_.secret)](
                    FileDescriptor& socket, Deadline soon, const std::function<void()>& proved) {
    handshake(socket, Role::kServer, secret, kSharing, soon, {}, proved);
    send_descriptors(socket, {descriptor});
    return [&socket] { const FileDescriptor passed = std::move(socket); };
  };
  Acceptor acceptor(setup, receivers, deadline);
  while (!acceptor.is_over_within(kInterruptionCheck)) {
    if (interrupted && interrupted()) throw ClosedError("[smdp] the wait for other ranks was interrupted.");
  }
  if (!acceptor.have_all_come()) throw TimeoutError("[smdp] a rank of this host did not take shared memory in time.");
}

SharedBytes receive_memory(const MeetingPoint& point, std::size_t bytes, const char* purpose, Deadline deadline,
                           const Interrupted& interrupted) {
  const FileDescriptor socket = connect_local(socket_name(point));
  if (socket.get() < 0) throw ConnectionEnded("[smdp] a rank of this host does not offer its shared memory any more.");
  handshake(socket, Role::kClient, text(point.secret), kSharing, deadline, interrupted);
  FileDescriptor memfd = std::move(receive_descriptors(socket, 1, deadline).front());
  const auto mapping = std::make_shared<SharedMapping>(std::move(memfd), bytes, purpose);
  return {mapping, mapping->data()};
}

}  // namespace smdp
