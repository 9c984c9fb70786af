// Shared memory inside a host, TCP between hosts.
#pragma once

#include <memory>
#include <vector>

#include "common/file_descriptor.h"
#include "transport/progress.h"
#include "transport/shm/shared_board.h"
#include "transport/transport.h"

namespace smdp {

class ShmTcpTransport final : public Transport {
 public:
  // doorbells: by local rank. data, mail: by rank, for ranks on other hosts.
  ShmTcpTransport(std::shared_ptr<Progress> progress, Members members, std::shared_ptr<Segment> segment,
                  std::vector<Doorbell> doorbells, std::vector<std::vector<FileDescriptor>> data,
                  std::vector<FileDescriptor> mail);

  Board& board() override { return board_; }
  std::size_t streams() const override { return streams_; }
  std::unique_ptr<Link> open_link(int rank, Link::Handlers handlers) override;
  std::unique_ptr<ByteStream> open_stream(int rank) override;
  void arm_streams() override;

 private:
  const std::shared_ptr<Progress> progress_;
  const Members members_;
  const std::shared_ptr<Segment> segment_;
  const std::vector<Doorbell> doorbells_;
  std::vector<std::vector<FileDescriptor>> data_;
  std::vector<FileDescriptor> mail_;
  std::size_t streams_ = 0;
  SharedBoard board_;
};

}  // namespace smdp
