// Messages of collectives between this rank and one rank on another host, over one or more TCP streams.
//
// A message goes directly from the sender's buffer into the buffer that the receiver posted for its key. Long messages
// are cut into frames, which use all streams. A stream is not read while its next frame has no posted buffer, so TCP
// itself slows down a fast peer. Both ranks send and post in the same order, so this cannot deadlock.
//
// Thread safety: progress thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "common/file_descriptor.h"
#include "common/shortage.h"
#include "transport/progress.h"
#include "transport/tcp/frame.h"
#include "transport/transport.h"

namespace smdp {

class TcpLink final : public Link {
 public:
  TcpLink(Progress& progress, const Members& members, int peer, std::vector<FileDescriptor> streams, Handlers handlers);
  ~TcpLink() override;

  void enter(const Fingerprint& fingerprint) override;
  void send(std::uint64_t slot, const std::byte* data, std::size_t size, Pending& pending,
            std::size_t streams) override;
  void receive(std::uint64_t slot, std::byte* data, std::size_t size, Pending& pending) override;
  // A frame that was begun is completed with zeros, so that the peer never misreads what follows.
  void drop(std::uint64_t sequence) override;
  void reset() override;
  void abandon() override;
  bool is_broken() const override { return broken_; }

 private:
  struct Outgoing {
    Frame frame;
    const std::byte* data;
    std::size_t done;                   // bytes of frame and payload written
    Pending* pending;                   // null: there is no waiting coroutine
    std::vector<std::byte> zeros = {};  // replaces the data of a collective that was dropped
  };
  struct Posted {
    MessageKey key;
    std::byte* data;
    std::size_t size;
    std::size_t claimed;   // bytes of frames whose header has been read
    std::size_t received;  // bytes of complete frames
    Pending* pending;
  };
  struct Stream {
    FileDescriptor socket;
    std::deque<Outgoing> outgoing;
    std::size_t queued = 0;  // bytes
    Frame frame;             // being read
    std::size_t header_done = 0;
    std::size_t payload_done = 0;
    std::list<Posted>::iterator target;
    bool has_target = false;
    bool is_dropped = false;  // the frame's payload is discarded; has_target is set
    bool stalled = false;     // a whole header has been read, but its key has not been posted
    std::uint32_t events = 0;
  };

  void on_event(Stream& stream, std::uint32_t events);
  Stream& next_stream(std::size_t streams);
  void write_some(Stream& stream);
  void read_some(Stream& stream);
  bool find_target(Stream& stream);
  void finish_frame(Stream& stream);
  void drop_outgoing(Stream& stream, std::uint64_t sequence);
  bool was_dropped(std::uint64_t sequence) const;
  void update_events(Stream& stream);
  void ended(Stream& stream);
  void broken(const std::string& reason);
  void failed(const char* call);
  void lacks(const ShortageError& error);

  Progress& progress_;
  const Members& members_;
  int peer_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::size_t turn_ = 0;  // index of the stream whose turn it is
  Handlers handlers_;
  Fingerprint current_;
  std::array<Fingerprint, 4> entered_{};  // the most recent ones, by sequence
  std::list<Posted> posted_;
  std::vector<std::uint64_t> dropped_;  // sequence numbers, ascending
  std::vector<std::byte> scrap_;        // receives their payloads
  bool broken_ = false;
  bool abandoned_ = false;
};

}  // namespace smdp
