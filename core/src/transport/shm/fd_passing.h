// Local rendezvous over an abstract Unix socket, which passes descriptors by SCM_RIGHTS. Such sockets belong to a
// network namespace, so a connection proves that both ranks are in the same one. All functions throw ShortageError if a
// limit or a sandbox prevents the call.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/file_descriptor.h"

namespace smdp {

// name: without the leading zero byte.
FileDescriptor listen_local(const std::string& name);
// Returns an empty descriptor if there is no listener.
FileDescriptor connect_local(const std::string& name);

// The connected peer as this process sees it: 0 or 65534 if the peer is in a namespace that is not visible from here.
struct LocalPeer {
  int process = 0;
  std::string user;  // numeric
};
LocalPeer local_peer(const FileDescriptor& socket);

// Sends one message per 200 descriptors. Throws Error, and ConnectionEnded if the other side is gone.
void send_descriptors(const FileDescriptor& socket, const std::vector<int>& descriptors);
std::vector<FileDescriptor> receive_descriptors(const FileDescriptor& socket, std::size_t count,
                                                std::chrono::steady_clock::time_point deadline);

}  // namespace smdp
