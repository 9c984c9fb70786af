#include "transport/mail/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/failure.h"
#include "common/shortage.h"
#include "smdp/error.h"

namespace smdp {

Mailbox::Mailbox(const Members& members, std::function<void(int, const std::string&)> on_broken,
                 std::function<void(std::exception_ptr)> on_error)
    : members_(members), on_broken_(std::move(on_broken)), on_error_(std::move(on_error)) {
  peers_.resize(static_cast<std::size_t>(members.size));
}

void Mailbox::open(std::vector<std::unique_ptr<ByteStream>> streams) {
  for (std::size_t rank = 0; rank < streams.size(); ++rank) peers_[rank].stream = std::move(streams[rank]);
}

// Rejects headers that no rank would send, before their values are used.
bool Mailbox::is_sound(const Header& header) {
  if (header.magic != kMagic || size_of(header.dtype) == 0) return false;
  switch (header.kind) {
    case Kind::kEager:
      return header.payload == header.size && header.payload <= kEager && header.offset == 0;
    case Kind::kAnnounce:
    case Kind::kReady:
    case Kind::kRefuse:
    case Kind::kKept:
      return header.payload == 0;
    case Kind::kOffer:
      return header.payload == 0 && header.size != 0;
    case Kind::kData:
    case Kind::kPush:
      return header.payload != 0 && header.payload <= kFramePayload && header.offset <= header.size &&
             header.payload <= header.size - header.offset;
  }
  return false;
}

void Mailbox::queue(int rank, const Header& header, const std::byte* data, bool is_last) {
  peers_[static_cast<std::size_t>(rank)].outgoing.push_back({header, data, 0, is_last});
}

void Mailbox::queue_data(int rank, Kind kind, std::uint64_t id, Request request) {
  for (std::size_t offset = 0; offset < request.size; offset += kFramePayload) {
    const std::size_t payload = std::min(kFramePayload, request.size - offset);
    const Header data{kMagic, kind, request.dtype, 0, request.tag, id, request.size, payload, offset};
    queue(rank, data, request.data + offset, kind == Kind::kData && offset + payload == request.size);
  }
  peers_[static_cast<std::size_t>(rank)].sending.emplace_back(id, std::move(request));
}

void Mailbox::send(Request request) {
  Header header{kMagic, Kind::kEager, request.dtype, 0, request.tag, next_id_++, request.size, request.size, 0};
  Peer& peer = peers_[static_cast<std::size_t>(request.peer)];
  if (request.size <= kEager && !request.is_offer) {
    queue(request.peer, header, request.data, true);
    peer.sending.emplace_back(header.id, std::move(request));
    return;
  }
  header.kind = request.is_offer ? Kind::kOffer : Kind::kAnnounce;
  header.payload = 0;
  queue(request.peer, header);
  peer.announced.emplace_back(header.id, std::move(request));
}

void Mailbox::receive(Request request) {
  for (int rank = 0; rank < members_.size; ++rank) {
    if (request.peer != kAnySource && request.peer != rank) continue;
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const auto found = find_arrived(rank, request.tag, false);
    if (found == peer.arrived.end()) continue;
    if (!fits(found->header, rank, request)) return;
    const Arrived arrived = std::move(*found);
    peer.arrived.erase(found);
    const Header& header = arrived.header;
    if (header.kind != Kind::kEager && arrived.payload.empty()) {
      accept(rank, header, std::move(request));
      return;
    }
    if (!arrived.payload.empty()) std::memcpy(request.data, arrived.payload.data(), arrived.payload.size());
    if (header.kind == Kind::kEager || arrived.received == header.size) {
      request.operation->complete(nullptr, rank);
      return;
    }
    // The rest is in transit, perhaps in the middle of a frame.
    if (peer.header_done == sizeof(Header) && peer.header.kind == Kind::kPush && peer.header.id == header.id) {
      peer.target = request.data + peer.header.offset;
    }
    peer.incoming.push_back({header.id, std::move(request), arrived.received});
    return;
  }
  receives_.push_back(std::move(request));
}

// The receiver has a buffer: tells the sender so and remembers where the data goes.
void Mailbox::accept(int rank, const Header& header, Request request) {
  Header ready{kMagic, Kind::kReady, header.dtype, 0, header.tag, header.id, header.size, 0, 0};
  queue(rank, ready);
  peers_[static_cast<std::size_t>(rank)].incoming.push_back({header.id, std::move(request), 0});
}

bool Mailbox::fits(const Header& header, int rank, const Request& request) {
  if (header.size == request.size && header.dtype == request.dtype) return true;
  const auto text = [](std::uint64_t bytes, DType dtype) {
    return std::string(name_of(dtype)) + "[" + std::to_string(bytes / size_of(dtype)) + "]";
  };
  const auto error = std::make_exception_ptr(MismatchError(
      members_.prefix() + "recv (tag " + std::to_string(request.tag) + ") expects " +
      text(request.size, request.dtype) + ", but " + members_.who(rank) + " sent " + text(header.size, header.dtype) +
      ". The buffer of recv must have the size and dtype of the message."));
  on_error_(error);  // first, so that the other ranks get it even if this rank ends right afterwards
  request.operation->complete(error);
  return false;
}

std::list<Mailbox::Request>::iterator Mailbox::find_receive(int rank, const Header& header) {
  return std::find_if(receives_.begin(), receives_.end(), [&](const Request& request) {
    if (request.is_refusal && header.kind != Kind::kOffer) return false;
    return request.tag == header.tag && (request.peer == kAnySource || request.peer == rank);
  });
}

std::list<Mailbox::Arrived>::iterator Mailbox::find_arrived(int rank, std::int64_t tag, bool is_offer) {
  auto& arrived = peers_[static_cast<std::size_t>(rank)].arrived;
  return std::find_if(arrived.begin(), arrived.end(), [&](const Arrived& item) {
    return item.header.tag == tag && !item.is_refused && (!is_offer || item.header.kind == Kind::kOffer);
  });
}

void Mailbox::begin_payload(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const Header& header = peer.header;
  peer.is_matched = false;
  peer.target = nullptr;
  if (header.kind == Kind::kEager) {
    peer.matched = find_receive(rank, header);
    if (peer.matched != receives_.end() && fits(header, rank, *peer.matched)) {
      // Removed from the list of posted receives at once, so that a second message cannot match it as well.
      peer.incoming.push_front({0, std::move(*peer.matched), 0});
      receives_.erase(peer.matched);
      peer.is_matched = true;
      peer.target = peer.incoming.front().request.data;
    } else {
      peer.eager.resize(header.payload);
      peer.target = peer.eager.data();
    }
  } else if (header.kind == Kind::kData || header.kind == Kind::kPush) {
    peer.target = place_of(peer, header);
  }
}

// Returns the destination of a data frame.
std::byte* Mailbox::place_of(Peer& peer, const Header& header) {
  const auto goes_on = [&header](std::uint64_t size, std::size_t received) {
    if (header.size != size || received + header.payload > size) throw Error("a message is damaged");
  };
  for (Incoming& incoming : peer.incoming) {
    if (incoming.id != header.id) continue;
    goes_on(incoming.request.size, incoming.received);
    return incoming.request.data + header.offset;
  }
  if (header.kind != Kind::kPush) throw Error("a message is damaged");
  Arrived* kept = find_pushed(peer, header);
  if (kept == nullptr) {  // refused before the sender knew of it
    peer.eager.resize(header.payload);
    return peer.eager.data();
  }
  goes_on(kept->header.size, kept->received);
  if (header.offset != kept->received) throw Error("a message is damaged");
  try {
    kept->payload.resize(header.offset + header.payload);  // grows as data arrives, because the whole message may take
                                                           // gigabytes
  } catch (const std::exception&) {
    throw Error("there is no memory for a message of " + std::to_string(header.size) + " bytes");
  }
  return kept->payload.data() + header.offset;
}

void Mailbox::end_payload(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const Header header = peer.header;
  peer.header_done = 0;
  peer.payload_done = 0;
  switch (header.kind) {
    case Kind::kEager:
      if (peer.is_matched) {
        const auto operation = peer.incoming.front().request.operation;
        peer.incoming.pop_front();
        operation->complete(nullptr, rank);
      } else {
        // A receive may have been posted while the payload was in transit.
        const std::vector<std::byte> payload = std::exchange(peer.eager, {});
        const auto found = find_receive(rank, header);
        if (found == receives_.end()) {
          peer.arrived.push_back({header, payload});
        } else {
          const Request request = std::move(*found);
          receives_.erase(found);
          if (fits(header, rank, request)) {
            if (!payload.empty()) std::memcpy(request.data, payload.data(), payload.size());
            request.operation->complete(nullptr, rank);
          }
        }
      }
      break;
    case Kind::kAnnounce:
    case Kind::kOffer: {
      const auto found = find_receive(rank, header);
      if (found == receives_.end()) {
        peer.arrived.push_back({header, {}});
        break;
      }
      Request request = std::move(*found);
      receives_.erase(found);
      if (request.is_refusal) {
        peer.arrived.push_back({header, {}});
        refuse(rank, header.tag);
      } else if (fits(header, rank, request)) {
        accept(rank, header, std::move(request));
      }
      break;
    }
    case Kind::kReady: {
      const auto found = std::find_if(peer.announced.begin(), peer.announced.end(),
                                      [&](const auto& item) { return item.first == header.id; });
      if (found == peer.announced.end()) {
        if (has_pushed_) break;
        throw Error("a message is damaged");
      }
      Request request = std::move(found->second);
      peer.announced.erase(found);
      queue_data(rank, Kind::kData, header.id, std::move(request));
      break;
    }
    case Kind::kRefuse: {
      const auto found = std::find_if(peer.announced.begin(), peer.announced.end(), [&](const auto& item) {
        return item.first == header.id && item.second.is_offer;
      });
      if (found == peer.announced.end()) {
        if (has_pushed_) break;
        throw Error("a message is damaged");
      }
      found->second.operation->complete(nullptr);
      peer.announced.erase(found);
      break;
    }
    case Kind::kKept: {
      const auto found = std::find_if(peer.sending.begin(), peer.sending.end(), [&](const auto& item) {
        return item.first == header.id && item.second.is_offer && has_pushed_;
      });
      const bool is_unsent = std::any_of(peer.outgoing.begin(), peer.outgoing.end(), [&](const Outgoing& out) {
        return out.data != nullptr && out.header.id == header.id;
      });
      if (found == peer.sending.end() || is_unsent) throw Error("a message is damaged");
      found->second.operation->complete(nullptr);
      peer.sending.erase(found);
      break;
    }
    case Kind::kData:
    case Kind::kPush:
      end_data(rank, header);
      break;
  }
}

void Mailbox::end_data(int rank, const Header& header) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const auto found = std::find_if(peer.incoming.begin(), peer.incoming.end(),
                                  [&](const Incoming& incoming) { return incoming.id == header.id; });
  Arrived* kept = found == peer.incoming.end() ? find_pushed(peer, header) : nullptr;
  const bool is_known = found != peer.incoming.end() || kept != nullptr;
  std::size_t received = header.offset + header.payload;  // frames arrive in order
  if (is_known) received = (kept == nullptr ? found->received : kept->received) += header.payload;
  if (received < header.size) return;
  // The sender must not close the stream earlier: if it had unread data, closing would discard data in transit.
  if (header.kind == Kind::kPush) queue(rank, {kMagic, Kind::kKept, header.dtype, 0, header.tag, header.id, 0, 0, 0});
  if (!is_known) return;
  if (kept == nullptr) {
    const auto operation = found->request.operation;
    peer.incoming.erase(found);
    operation->complete(nullptr, rank);
  } else if (kept->is_refused) {
    peer.arrived.remove_if([kept](const Arrived& arrived) { return &arrived == kept; });
  }
}

bool Mailbox::write(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  bool moved = false;
  while (!peer.outgoing.empty()) {
    Outgoing& out = peer.outgoing.front();
    const std::size_t total = sizeof(Header) + out.header.payload;
    const std::byte* from = out.done < sizeof(Header) ? reinterpret_cast<const std::byte*>(&out.header) + out.done
                                                      : out.data + (out.done - sizeof(Header));
    const std::size_t want = out.done < sizeof(Header) ? sizeof(Header) - out.done : total - out.done;
    const std::size_t written = peer.stream->write({from, want});
    if (written == 0) break;
    moved = true;
    out.done += written;
    if (out.done == total) {
      const bool is_last = out.is_last;
      const std::uint64_t id = out.header.id;
      peer.outgoing.pop_front();
      if (!is_last) continue;
      const auto sent =
          std::find_if(peer.sending.begin(), peer.sending.end(), [id](const auto& item) { return item.first == id; });
      if (sent == peer.sending.end()) throw Error("a message is damaged");
      const auto operation = sent->second.operation;
      peer.sending.erase(sent);
      operation->complete(nullptr);
    }
  }
  peer.stream->want_room(!peer.outgoing.empty());
  return moved;
}

bool Mailbox::read(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  bool moved = false;
  for (;;) {
    if (peer.header_done < sizeof(Header)) {
      auto* to = reinterpret_cast<std::byte*>(&peer.header) + peer.header_done;
      const std::size_t got = peer.stream->read({to, sizeof(Header) - peer.header_done});
      if (got == 0) return moved;
      moved = true;
      peer.header_done += got;
      if (peer.header_done < sizeof(Header)) continue;
      if (!is_sound(peer.header)) throw Error("a message is damaged");
      begin_payload(rank);
    }
    if (peer.payload_done < peer.header.payload) {
      const std::size_t got =
          peer.stream->read({peer.target + peer.payload_done, peer.header.payload - peer.payload_done});
      if (got == 0) return moved;
      moved = true;
      peer.payload_done += got;
    }
    if (peer.payload_done == peer.header.payload) end_payload(rank);
  }
}

bool Mailbox::poll() {
  bool moved = false;
  for (int rank = 0; rank < members_.size; ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.stream) continue;
    try {
      moved |= read(rank);
      if (peer.stream && !peer.outgoing.empty()) moved |= write(rank);
    } catch (const ShortageError& error) {
      peer.stream.reset();
      on_error_(std::make_exception_ptr(ShortageError(members_.prefix() + without_tag(error.what()))));
    } catch (const Error& error) {
      broken(rank, error.what());
    }
  }
  return moved;
}

void Mailbox::broken(int rank, const std::string& reason) {
  peers_[static_cast<std::size_t>(rank)].stream.reset();
  on_broken_(rank, reason);
}

Clock::time_point Mailbox::deadline() const {
  Clock::time_point first = Clock::time_point::max();
  for (const Request& request : receives_) first = std::min(first, request.deadline);
  for (const Peer& peer : peers_) {
    for (const auto& [id, request] : peer.announced) first = std::min(first, request.deadline);
    for (const auto& [id, request] : peer.sending) first = std::min(first, request.deadline);
    for (const Incoming& incoming : peer.incoming) first = std::min(first, incoming.request.deadline);
  }
  return first;
}

const Mailbox::Request* Mailbox::overdue(Clock::time_point now) const {
  for (const Request& request : receives_) {
    if (request.deadline <= now) return &request;
  }
  for (const Peer& peer : peers_) {
    for (const auto* sends : {&peer.announced, &peer.sending}) {
      for (const auto& [id, request] : *sends) {
        if (request.deadline <= now) return &request;
      }
    }
    for (const Incoming& incoming : peer.incoming) {
      if (incoming.request.deadline <= now) return &incoming.request;
    }
  }
  return nullptr;
}

const Mailbox::Request* Mailbox::waiting_for(int rank) const {
  for (const Request& request : receives_) {
    if (request.peer == rank && !request.is_refusal) return &request;
  }
  if (rank == kAnySource) return nullptr;
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  for (const auto* sends : {&peer.announced, &peer.sending}) {
    for (const auto& [id, request] : *sends) {
      if (!request.is_offer) return &request;
    }
  }
  if (!peer.incoming.empty()) return &peer.incoming.front().request;
  return nullptr;
}

// The loss of a rank is reported without the operation that was in flight to it.
std::exception_ptr Mailbox::named(const Request& request, const std::exception_ptr& error) const {
  Failure failure = Failure::of(error);
  if (failure.kind != ErrorKind::kPeerLost) return error;
  const std::string prefix = members_.prefix();
  if (failure.text.starts_with(prefix)) failure.text.erase(0, prefix.size());
  failure.text = prefix + "a message with tag " + std::to_string(request.tag) + (request.is_send ? " to " : " from ") +
                 (request.peer == kAnySource ? "any rank" : members_.who(request.peer)) +
                 " cannot be exchanged: " + without_tag(failure.text);
  return failure.exception();
}

void Mailbox::fail(const std::exception_ptr& error) {
  const auto end = [&](const Request& request) { request.operation->complete(named(request, error)); };
  for (const Request& request : receives_) {
    if (!request.is_refusal) end(request);
  }
  receives_.clear();
  for (Peer& peer : peers_) {
    for (const auto& [id, request] : peer.announced) end(request);
    for (const auto& [id, request] : peer.sending) end(request);
    for (const Incoming& incoming : peer.incoming) end(incoming.request);
    peer.outgoing.clear();
    peer.announced.clear();
    peer.sending.clear();
    peer.incoming.clear();
    peer.arrived.clear();
    peer.stream.reset();
  }
}

}  // namespace smdp
