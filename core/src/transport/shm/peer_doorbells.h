// The doorbells of other processes of this host. However many groups two processes share, each keeps one descriptor of
// the other's doorbell.
#pragma once

#include <memory>
#include <string>

#include "common/file_descriptor.h"

namespace smdp {

using Doorbell = std::shared_ptr<const FileDescriptor>;

// Returns the doorbell of that name, see Progress::doorbell_name(). It is closed when the last group that uses it goes.
// received: a descriptor of it, which is closed where this process has one already.
Doorbell keep_doorbell(const std::string& name, FileDescriptor received);

}  // namespace smdp
