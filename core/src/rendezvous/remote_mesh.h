// Connections between ranks on different hosts: the higher rank connects, the lower accepts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/bootstrap.h"
#include "rendezvous/roster.h"

namespace smdp {

// listener: this rank's. Fills data, mail and, for ranks not on rank 0's host, control. Connections that do not prove
// the secret are refused, and logged once per address.
void connect_remote_ranks(const std::vector<Record>& records, const std::string& secret, const FileDescriptor& listener,
                          const GroupOptions& options, std::chrono::steady_clock::time_point deadline,
                          Connections& connections);

}  // namespace smdp
