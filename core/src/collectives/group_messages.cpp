// Calls of a group from one rank to another.
#include <string>
#include <utility>

#include "collectives/engine/engine.h"
#include "collectives/group_arguments.h"
#include "collectives/group_impl.h"
#include "smdp/error.h"

namespace smdp {
namespace {

void check_source(const Members& members, int rank) {
  check_rank(members, "source", rank);
  if (rank == members.rank)
    throw InvalidArgument(members.prefix() +
                          "cannot receive from itself: source must be another rank. Copy the data instead.");
}

Mailbox::Request outgoing(const char* operation, const Members& members, ConstBuffer data, DType dtype, int destination,
                          std::int64_t tag) {
  check_rank(members, "destination", destination);
  check_buffer(operation, data.data, data.count);
  if (destination == members.rank)
    throw InvalidArgument(members.prefix() +
                          "cannot send to itself: destination must be another rank. Copy the data instead.");
  Mailbox::Request request{};
  request.data = const_cast<std::byte*>(bytes(data.data));
  request.size = data.count * size_of(dtype);
  request.dtype = dtype;
  request.peer = destination;
  request.tag = tag;
  return request;
}

}  // namespace

Group::Handle Group::send(ConstBuffer data, DType dtype, int destination, std::int64_t tag, const Call& call) {
  return impl_->engine->send(outgoing("send", impl_->members(), data, dtype, destination, tag), call);
}

Group::Handle Group::offer(ConstBuffer data, DType dtype, int destination, std::int64_t tag) {
  if (data.count == 0)
    throw InvalidArgument(impl_->members().prefix() + "cannot offer an empty message; it needs at least one element.");
  return impl_->engine->mail().offer(outgoing("offer", impl_->members(), data, dtype, destination, tag));
}

void Group::refuse(int source, std::int64_t tag) {
  check_source(impl_->members(), source);
  impl_->engine->mail().refuse(source, tag);
}

Group::Handle Group::recv(Buffer data, DType dtype, int source, std::int64_t tag, const Call& call) {
  const Members& members = impl_->members();
  if (source != Mailbox::kAnySource) check_source(members, source);
  check_buffer("recv", data.data, data.count);
  Mailbox::Request request{};
  request.data = bytes(data.data);
  request.size = data.count * size_of(dtype);
  request.dtype = dtype;
  request.peer = source;
  request.tag = tag;
  return impl_->engine->receive(std::move(request), call);
}

void Group::push_offers() { impl_->engine->mail().push_offers(); }

}  // namespace smdp
