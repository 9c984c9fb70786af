// Connections between ranks on different hosts: the higher rank connects, the lower accepts.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/roster.h"
#include "rendezvous/wires.h"
#include "smdp/internal/group_setup.h"

namespace smdp {

// listeners: this rank's, one per rail. Data streams use the rails in turn; there are options.streams to a peer, and at
// least one per rail that both have. Everything else uses the first rail. Fills data, mail and, for ranks that are not
// on rank 0's host, control. Connections that do not prove the secret are refused and logged once per address.
void connect_remote_ranks(const std::vector<Record>& records, const std::string& secret,
                          std::span<const FileDescriptor> listeners, const GroupSetup& options,
                          std::chrono::steady_clock::time_point deadline, Wires& wires);

}  // namespace smdp
