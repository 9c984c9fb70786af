#include "smdp/host_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/failure.h"
#include "rendezvous/memory_passing.h"
#include "smdp/error.h"

namespace smdp {
namespace {

constexpr char kShared[] = "parameters that the ranks of this host share";
constexpr std::chrono::seconds kPassingTime{60};

// What each rank reports to the others about one stage.
struct Report {
  std::uint64_t bytes = 0;
  bool has_failed = false;
  std::array<char, 1023> reason{};  // ends with a zero
};

template <class T>
std::vector<T> gathered(Group& group, const T& own, const std::function<bool()>& interrupted) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  std::vector<Buffer> out;
  for (T& one : all) out.push_back({&one, sizeof one});
  Call call;
  call.interrupted = interrupted;
  group.all_gather({&own, sizeof own}, out, DType::kUint8, call);
  return all;
}

// Does this rank's part of a stage, then compares with the other ranks, so that all of them fail or none.
void do_together(Group& group, std::size_t bytes, const std::function<bool()>& interrupted,
                 const std::function<void()>& part) {
  Report own;
  own.bytes = bytes;
  try {
    part();
  } catch (const std::exception& error) {
    if (group.error()) std::rethrow_exception(group.error());
    own.has_failed = true;
    const std::string reason = without_tag(error.what());
    std::copy_n(reason.data(), std::min(reason.size(), own.reason.size() - 1), own.reason.data());
  }
  const std::vector<Report> all = gathered(group, own, interrupted);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string who =
        "rank " + std::to_string(group.world_rank(static_cast<int>(rank))) + " (host " + group.host_names()[rank] + ")";
    if (all[rank].bytes != all[0].bytes) {
      throw MismatchError(group.tag() + ": " + who + " asks for " + std::to_string(all[rank].bytes) +
                          " bytes of memory for each host, and rank " + std::to_string(group.world_rank(0)) + " for " +
                          std::to_string(all[0].bytes) + ". All ranks must ask for the same.");
    }
    if (all[rank].has_failed) {
      throw Error(group.tag() + ": " + who + " cannot share memory: " + all[rank].reason.data());
    }
  }
}

}  // namespace

class HostMemory::Impl {
 public:
  Impl(Group& group, std::size_t bytes, const std::function<bool()>& interrupted)
      : base_(group.id()), local_(group.split(group.host_index(), group.rank(), "host memory")), bytes_(bytes) {
    try {
      share(group, interrupted);
    } catch (const std::exception& error) {
      local_->abort(without_tag(error.what()));  // this host's other ranks would only hear that this rank has left
      throw;
    }
  }

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

  void await_host(const std::function<bool()>& interrupted) {
    Call call;
    // A rank of this host may wait for one of another host, which only `base_` knows.
    call.interrupted = [&] {
      const std::exception_ptr error = base_error();
      if (error) local_->abort(without_tag(Failure::of(error).text));
      return !error && interrupted && interrupted();
    };
    call.label = [] { return std::string(kShared); };
    try {
      local_->barrier(call);
    } catch (const Error&) {
      if (const std::exception_ptr error = base_error()) std::rethrow_exception(error);
      throw;
    }
  }

  void abort(const std::string& reason) { local_->abort(reason); }

 private:
  // The first rank of each host allocates the memory and passes it to the host's other ranks.
  void share(Group& group, const std::function<bool()>& interrupted) {
    std::optional<MemoryPassing> passing;
    do_together(group, bytes_, interrupted, [&] {
      if (bytes_ != 0 && local_->rank() == 0) passing.emplace(bytes_, kShared);
    });
    do_together(group, bytes_, interrupted, [&] {
      if (bytes_ == 0) return;
      const Deadline deadline = std::chrono::steady_clock::now() + kPassingTime;
      bool is_ended = false;
      const Interrupted is_over = [&] {
        if (interrupted && interrupted()) group.abort("interrupted");
        is_ended = local_->error() != nullptr || group.error() != nullptr;
        return is_ended;
      };
      try {
        const MeetingPoint point = gathered(*local_, passing ? passing->point() : MeetingPoint{}, interrupted).front();
        if (!passing) {
          memory_ = receive_memory(point, bytes_, kShared, deadline, is_over);
          return;
        }
        memory_ = passing->memory();
        if (local_->size() > 1) passing->pass(static_cast<std::size_t>(local_->size() - 1), deadline, is_over);
      } catch (const std::exception& error) {
        if (is_ended) return;                      // the rank that has failed first reports why
        local_->abort(without_tag(error.what()));  // the others wait for this rank
        throw;
      }
    });
  }

  // Returns why the group of all ranks is closed. Null if it is open, or does not exist any more.
  std::exception_ptr base_error() const {
    const std::shared_ptr<Group> base = Group::find(base_);
    return base ? base->error() : nullptr;
  }

  const std::uint64_t base_;            // id of the group of all ranks
  const std::unique_ptr<Group> local_;  // the ranks of this host
  const std::size_t bytes_;
  SharedBytes memory_;  // null if there are no bytes
};

HostMemory::HostMemory(Group& group, std::size_t bytes, const std::function<bool()>& interrupted)
    : impl_(std::make_unique<Impl>(group, bytes, interrupted)) {}
HostMemory::~HostMemory() = default;
std::byte* HostMemory::data() const { return impl_->data(); }
std::size_t HostMemory::size() const { return impl_->size(); }
void HostMemory::await_host(const std::function<bool()>& interrupted) { impl_->await_host(interrupted); }
void HostMemory::abort(const std::string& reason) { impl_->abort(reason); }

}  // namespace smdp
