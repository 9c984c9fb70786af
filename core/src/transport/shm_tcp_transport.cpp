#include "transport/shm_tcp_transport.h"

#include <algorithm>
#include <utility>

#include "transport/shm/doorbell.h"
#include "transport/shm/ring_stream.h"
#include "transport/tcp/socket_stream.h"
#include "transport/tcp/tcp_link.h"

namespace smdp {

ShmTcpTransport::ShmTcpTransport(std::shared_ptr<Progress> progress, Members members, std::shared_ptr<Segment> segment,
                                 std::vector<Doorbell> doorbells, std::vector<std::vector<FileDescriptor>> data,
                                 std::vector<FileDescriptor> mail)
    : progress_(std::move(progress)),
      members_(std::move(members)),
      segment_(std::move(segment)),
      doorbells_(std::move(doorbells)),
      data_(std::move(data)),
      mail_(std::move(mail)),
      board_(segment_, members_, doorbells_) {
  for (const auto& to_one : data_) streams_ = std::max(streams_, to_one.size());
}

std::unique_ptr<Link> ShmTcpTransport::open_link(int rank, Link::Handlers handlers) {
  auto& streams = data_[static_cast<std::size_t>(rank)];
  return std::make_unique<TcpLink>(*progress_, members_, rank, std::move(streams), std::move(handlers));
}

std::unique_ptr<ByteStream> ShmTcpTransport::open_stream(int rank) {
  if (members_.host_of(rank) != members_.host_index) {
    return std::make_unique<SocketStream>(*progress_, std::move(mail_[static_cast<std::size_t>(rank)]), [] {});
  }
  const std::size_t local = members_.local_index_of(rank);
  return std::make_unique<RingStream>(segment_, members_.local_index, local, doorbells_[local]->get());
}

void ShmTcpTransport::arm_streams() { segment_->flags(members_.local_index).mail_sleep.store(kInEpoll); }

}  // namespace smdp
