#include "smdp/meeting.h"

#include <exception>
#include <utility>

#include "common/thread_wait.h"

namespace smdp {

Meeting::Meeting(std::string group, int size) : scope_(std::make_unique<WaitScope>(std::move(group), size)) {}
Meeting::~Meeting() = default;

void Meeting::check() const {
  if (const std::exception_ptr error = broken_wait(scope_->id())) std::rethrow_exception(error);
}

}  // namespace smdp
