// Memory that exists once per host: all ranks of a host map it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "smdp/export.h"
#include "smdp/group.h"

namespace smdp {

// The memory has no name outside the processes, so nothing is left when they end. Thread safety: one thread at a time.
class SMDP_API HostMemory {
 public:
  // Collective, with the same number of bytes on all ranks. The memory is filled with zeros and fully allocated: using
  // it later cannot fail. If a rank cannot have it, all ranks throw the same error. `interrupted`: see Call; it is
  // polled while this rank waits for others.
  HostMemory(Group& group, std::size_t bytes, const std::function<bool()>& interrupted = {});
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();

  std::byte* data() const;
  std::size_t size() const;

  // Blocks until all ranks of this host have called it, so what they wrote before can be read, and what they read
  // before can be overwritten. Throws the group's errors. `interrupted`: see Call.
  void await_host(const std::function<bool()>& interrupted = {});
  // Ends await_host() on all ranks of this host, now and later, with an error that contains the reason.
  void abort(const std::string& reason);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smdp
