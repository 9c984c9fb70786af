// Calls that ranks may make in different orders, such as the operations of a graph that a framework runs in any order.
//
// All ranks follow rank 0's order. Rank 0 queues each call as it is made, preceded by a small broadcast of its name.
// Any other rank sets its calls aside, and takes part in such broadcasts as long as it has some: each tells which of
// its calls is next, or which call it must wait for. All ranks thereby queue the same sequence, one broadcast and one
// operation in turn.
#include <array>
#include <memory>
#include <utility>

#include "collectives/engine/call_queue.h"
#include "collectives/routes.h"
#include "smdp/error.h"

namespace smdp {
namespace {

Bytes bytes_of(Fingerprint& named) { return {reinterpret_cast<std::byte*>(&named), sizeof named}; }

}  // namespace

void CallQueue::queue_by_name(std::unique_ptr<Collective> collective) {
  const Fingerprint& print = collective->fingerprint;
  if (!names_.insert(print.name).second) {
    throw MismatchError(members_.prefix() + "two calls of " + print.describe_name() +
                        " are in flight at once, so they cannot be matched with the other ranks' calls. Give each "
                        "call its own name, or let one wait for the other.");
  }
  if (members_.rank == kOrderingRank) {
    queue_next_name(print);
    queue_.push_back(std::move(collective));
    return;
  }
  const std::uint64_t name = print.name;
  aside_.emplace(name, std::move(collective));
  if (announced_.name == name) {
    queue_from_aside();
  } else if (!is_asking_for_next_ && announced_.name == 0) {
    queue_next_name(Fingerprint{});
  }
}

void CallQueue::queue_next_name(const Fingerprint& named) {
  auto collective = std::make_unique<Collective>();
  const auto next = collective->announced_name = std::make_shared<Fingerprint>(named);
  Fingerprint& print = collective->fingerprint;
  print.kind = OpKind::kBroadcast;
  print.root = kOrderingRank;
  print.set_shape(std::array<std::int64_t, 1>{sizeof *next});
  print.set_name("which operation is next");
  collective->bytes = sizeof *next;
  collective->is_counted = false;
  collective->body = [next](Context& context) { return routed_broadcast(context, bytes_of(*next), kOrderingRank); };
  if (!aside_.empty()) {
    collective->label = [text = aside_.begin()->second->describe()] { return "before " + text; };
  }
  collective->timeout = options_.timeout;
  collective->deadline = Clock::now() + collective->timeout;
  collective->next_inquiry = collective->final_inquiry();
  is_asking_for_next_ = members_.rank != kOrderingRank;
  queue_.push_back(std::move(collective));
}

void CallQueue::end_by_name(const Collective& ended) {
  if (ended.is_by_name) names_.erase(ended.fingerprint.name);
  if (!ended.announced_name || members_.rank == kOrderingRank) return;
  is_asking_for_next_ = false;
  announced_ = *ended.announced_name;
  queue_from_aside();
}

void CallQueue::queue_from_aside() {
  const auto found = aside_.find(announced_.name);
  if (found == aside_.end()) return;  // this rank has not made the call yet
  queue_.push_back(std::move(found->second));
  aside_.erase(found);
  announced_ = {};
  if (!aside_.empty()) queue_next_name(Fingerprint{});
}

std::string CallQueue::reason_for_waiting_aside() const {
  return "it waits for " + announced_.describe_name() + ", which " + members_.who(kOrderingRank) +
         " called first and this rank has not called yet";
}

std::string CallQueue::waiting_for_the_announced() const {
  // Data that rank 0 has sent for the announced call may still be in a stream, but it announces nothing more.
  const Lock lock(mutex_);
  const bool waits = !aside_.empty() && announced_.name != 0 && failures_.has_left(kOrderingRank);
  return waits ? aside_.begin()->second->fingerprint.describe() : "";
}

}  // namespace smdp
