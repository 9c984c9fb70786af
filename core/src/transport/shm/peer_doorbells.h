// The doorbells of other processes of this host. Each process keeps one descriptor of another's doorbell, however many
// groups the two share.
#pragma once

#include <memory>
#include <string>

#include "common/file_descriptor.h"

namespace smdp {

using Doorbell = std::shared_ptr<const FileDescriptor>;

// Returns the doorbell of that name, see Progress::doorbell_name(). It is closed when its last group ends. received: a
// descriptor of the doorbell, which is closed if this process already has one.
Doorbell keep_doorbell(const std::string& name, FileDescriptor received);

}  // namespace smdp
