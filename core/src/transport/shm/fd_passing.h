// Local rendezvous over an abstract Unix socket: descriptors travel by SCM_RIGHTS. Such sockets belong to a network
// namespace, so a connection proves that both ranks are in the same one.
// All throw ShortageError where a limit or a sandbox does not let them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/file_descriptor.h"

namespace smdp {

// name: without the leading zero byte.
FileDescriptor listen_local(const std::string& name);
// Empty descriptor if nobody listens there.
FileDescriptor connect_local(const std::string& name);

// Who connected, as this process knows it: 0 or 65534 where it is in a namespace that this one does not see into.
struct LocalPeer {
  int process = 0;
  std::string user;  // number
};
LocalPeer local_peer(const FileDescriptor& socket);

// One message with at most 200 descriptors per part. Throws Error, ConnectionEnded where the other side is gone.
void send_descriptors(const FileDescriptor& socket, const std::vector<int>& descriptors);
std::vector<FileDescriptor> receive_descriptors(const FileDescriptor& socket, std::size_t count,
                                                std::chrono::steady_clock::time_point deadline);

}  // namespace smdp
