// Point-to-point messages of a group, matched by (source, tag) in the order they were sent.
//
// A message of up to kEager bytes is sent at once and kept at the receiver until it is requested. Longer messages are
// announced and sent when the receiver has a buffer: announce -> ready -> data, directly into that buffer. Data is cut
// into frames, so that a long message does not hold up a short one.
//
// An offer is announced whatever its size, and waits without a deadline until it is received or refused, or the
// receiver has left. A sender that leaves pushes its offers, and the receiver keeps them: offer -> push -> kept.
//
// Thread safety: progress thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "smdp/dtype.h"
#include "smdp/operation.h"
#include "transport/byte_stream.h"
#include "transport/members.h"
#include "transport/progress.h"

namespace smdp {

class Mailbox {
 public:
  static constexpr std::size_t kEager = std::size_t{32} << 10;
  static constexpr int kAnySource = -1;

  struct Request {
    std::shared_ptr<Operation> operation;
    std::byte* data;
    std::size_t size;  // bytes
    DType dtype;
    int peer;  // destination or source; kAnySource: any rank
    std::int64_t tag;
    Clock::time_point deadline;  // max() for offers and refusals
    std::chrono::milliseconds timeout;
    bool is_send = false;
    bool is_offer = false;    // for sends
    bool is_refusal = false;  // for receives: takes the place of a receive, and has no operation
  };

  // on_broken: a stream ended. on_error: a message does not match its receive, or this process ran out of a resource
  // (ShortageError).
  Mailbox(const Members& members, std::function<void(int peer, const std::string& reason)> on_broken,
          std::function<void(std::exception_ptr)> on_error);

  // Streams by rank; null for this rank.
  void open(std::vector<std::unique_ptr<ByteStream>> streams);

  void send(Request request);
  void receive(Request request);
  // Declines the next offer of `source` with this tag, now or when it arrives. Other messages are not affected.
  void refuse(int source, std::int64_t tag);
  // Sends all offered data, because this rank leaves.
  void push_offers();
  // Ends all offers to a rank that has left.
  void withdraw(int rank);

  // Moves whatever can be moved; returns whether anything was.
  bool poll();
  // Return the earliest deadline of a request, and a request whose deadline has passed.
  Clock::time_point deadline() const;
  const Request* overdue(Clock::time_point now) const;
  // Returns the first request, except offers, that only `peer`, which has left, could serve (kAnySource: any rank);
  // null if there is none. Call it after poll().
  const Request* waiting_for(int peer) const;

  // Returns whether the stream to a rank is still open.
  bool is_open(int rank) const { return peers_[static_cast<std::size_t>(rank)].stream != nullptr; }

  // Fails all requests and closes the streams.
  void fail(const std::exception_ptr& error);

 private:
  static constexpr std::uint32_t kMagic = 0x6c69616d;  // "mail"
  static constexpr std::size_t kFramePayload = std::size_t{256} << 10;

  enum class Kind : std::uint8_t { kEager, kAnnounce, kReady, kData, kOffer, kRefuse, kPush, kKept };
  struct Header {
    std::uint32_t magic;
    Kind kind;
    DType dtype;
    std::uint16_t reserved;
    std::int64_t tag;
    std::uint64_t id;       // of an announced message, per sender
    std::uint64_t size;     // of the whole message
    std::uint64_t payload;  // bytes that follow
    std::uint64_t offset;   // of the payload
  };
  struct Outgoing {
    Header header;
    const std::byte* data;
    std::size_t done;
    bool is_last;  // the last frame of its message
  };
  struct Arrived {  // not requested yet
    Header header;
    std::vector<std::byte> payload;  // of an eager message or a pushed offer
    std::size_t received = 0;        // bytes of a pushed offer
    bool is_refused = false;         // refused while it is being pushed
  };
  struct Incoming {  // a long message in transit
    std::uint64_t id;
    Request request;
    std::size_t received;
  };
  struct Peer {
    std::unique_ptr<ByteStream> stream;
    std::deque<Outgoing> outgoing;
    std::list<Arrived> arrived;
    std::list<Incoming> incoming;
    std::list<std::pair<std::uint64_t, Request>> announced;  // sends that wait for kReady
    std::list<std::pair<std::uint64_t, Request>> sending;    // sends whose data is in transit
    Header header{};
    std::size_t header_done = 0;
    std::size_t payload_done = 0;
    std::vector<std::byte> eager;
    std::byte* target = nullptr;
    std::list<Request>::iterator matched;
    bool is_matched = false;
  };

  static bool is_sound(const Header& header);
  bool write(int rank);
  bool read(int rank);
  void begin_payload(int rank);
  static std::byte* place_of(Peer& peer, const Header& header);
  void end_payload(int rank);
  std::list<Request>::iterator find_receive(int rank, const Header& header);
  std::list<Arrived>::iterator find_arrived(int rank, std::int64_t tag, bool is_offer);
  static Arrived* find_pushed(Peer& peer, const Header& header);
  bool fits(const Header& header, int rank, const Request& request);
  void accept(int rank, const Header& header, Request request);
  std::exception_ptr named(const Request& request, const std::exception_ptr& error) const;
  void queue(int rank, const Header& header, const std::byte* data = nullptr, bool is_last = false);
  void queue_data(int rank, Kind kind, std::uint64_t id, Request request);
  void end_data(int rank, const Header& header);
  void broken(int rank, const std::string& reason);

  const Members& members_;
  std::function<void(int, const std::string&)> on_broken_;
  std::function<void(std::exception_ptr)> on_error_;
  std::vector<Peer> peers_;
  std::list<Request> receives_;  // posted, not matched
  std::uint64_t next_id_ = 1;
  bool has_pushed_ = false;  // afterwards, answers may arrive for offers that no longer exist
};

}  // namespace smdp
