#include "smdp/meeting.h"

#include <exception>
#include <utility>

#include "common/thread_wait.h"

namespace smdp {

Meeting::Meeting(std::string group, int size, Obstacle obstacle, int world_rank, std::string purpose,
                 std::vector<std::string> replaced)
    : scope_(std::make_unique<WaitScope>(std::move(group), size, world_rank, std::move(purpose), std::move(replaced))),
      obstacle_(std::move(obstacle)) {}
Meeting::~Meeting() = default;

void Meeting::check(bool has_failed) const {
  if (const std::exception_ptr error = broken_wait(scope_->id())) std::rethrow_exception(error);
  if (!obstacle_) return;
  if (const std::exception_ptr error = obstacle_(has_failed)) std::rethrow_exception(error);
}

}  // namespace smdp
