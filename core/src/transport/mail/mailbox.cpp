#include "transport/mail/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "smdp/error.h"

namespace smdp {
namespace {

constexpr std::uint32_t kMagic = 0x6c69616d;  // "mail"
constexpr std::size_t kFramePayload = std::size_t{256} << 10;

}  // namespace

Mailbox::Mailbox(const Members& members, std::function<void(int, const std::string&)> on_broken,
                 std::function<void(std::exception_ptr)> on_error)
    : members_(members), on_broken_(std::move(on_broken)), on_error_(std::move(on_error)) {
  peers_.resize(static_cast<std::size_t>(members.size));
}

void Mailbox::open(std::vector<std::unique_ptr<ByteStream>> streams) {
  for (std::size_t rank = 0; rank < streams.size(); ++rank) peers_[rank].stream = std::move(streams[rank]);
}

// What no rank would send must not reach memory.
bool Mailbox::is_sound(const Header& header) {
  if (header.magic != kMagic || size_of(header.dtype) == 0) return false;
  switch (header.kind) {
    case Kind::kEager:
      return header.payload == header.size && header.payload <= kEager && header.offset == 0;
    case Kind::kAnnounce:
    case Kind::kReady:
    case Kind::kRefuse:
      return header.payload == 0;
    case Kind::kData:
      return header.payload != 0 && header.payload <= kFramePayload && header.offset <= header.size &&
             header.payload <= header.size - header.offset;
  }
  return false;
}

void Mailbox::push(int rank, const Header& header, const std::byte* data, std::shared_ptr<Operation> operation) {
  peers_[static_cast<std::size_t>(rank)].outgoing.push_back({header, data, 0, std::move(operation)});
}

void Mailbox::send(Request request) {
  Header header{kMagic, Kind::kEager, request.dtype, 0, request.tag, 0, request.size, request.size, 0};
  if (request.size <= kEager && !request.is_offer) {
    push(request.peer, header, request.data, request.operation);
    return;
  }
  header.kind = Kind::kAnnounce;
  header.id = next_id_++;
  header.payload = 0;
  push(request.peer, header, nullptr, nullptr);
  peers_[static_cast<std::size_t>(request.peer)].announced.emplace_back(header.id, std::move(request));
}

void Mailbox::receive(Request request) {
  for (int rank = 0; rank < members_.size; ++rank) {
    if (request.peer != kAnySource && request.peer != rank) continue;
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    const auto found = std::find_if(peer.arrived.begin(), peer.arrived.end(),
                                    [&](const Arrived& arrived) { return arrived.header.tag == request.tag; });
    if (found == peer.arrived.end()) continue;
    const Arrived arrived = std::move(*found);
    peer.arrived.erase(found);
    if (!fits(arrived.header, rank, request)) return;
    if (arrived.header.kind == Kind::kAnnounce) {
      accept(rank, arrived.header, std::move(request));
    } else {
      if (!arrived.payload.empty()) std::memcpy(request.data, arrived.payload.data(), arrived.payload.size());
      request.operation->complete(nullptr, rank);
    }
    return;
  }
  receives_.push_back(std::move(request));
}

void Mailbox::refuse(int source, std::int64_t tag) {
  Peer& peer = peers_[static_cast<std::size_t>(source)];
  const auto found = std::find_if(peer.arrived.begin(), peer.arrived.end(),
                                  [&](const Arrived& arrived) { return arrived.header.tag == tag; });
  if (found == peer.arrived.end()) {
    peer.refused.push_back(tag);
    return;
  }
  Header refusal = found->header;
  refusal.kind = Kind::kRefuse;
  peer.arrived.erase(found);
  push(source, refusal, nullptr, nullptr);
}

void Mailbox::withdraw(int rank) {
  peers_[static_cast<std::size_t>(rank)].announced.remove_if([](const auto& item) {
    if (item.second.is_offer) item.second.operation->complete(nullptr);
    return item.second.is_offer;
  });
}

// The receiver has a buffer: tell the sender, and remember where its data goes.
void Mailbox::accept(int rank, const Header& header, Request request) {
  Header ready{kMagic, Kind::kReady, header.dtype, 0, header.tag, header.id, header.size, 0, 0};
  push(rank, ready, nullptr, nullptr);
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
      ". The buffer of recv must have the size and dtype of what is sent."));
  on_error_(error);  // first, so that the others hear of it even if this rank ends right after
  request.operation->complete(error);
  return false;
}

std::list<Mailbox::Request>::iterator Mailbox::find_receive(int rank, std::int64_t tag) {
  return std::find_if(receives_.begin(), receives_.end(), [&](const Request& request) {
    return request.tag == tag && (request.peer == kAnySource || request.peer == rank);
  });
}

void Mailbox::begin_payload(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const Header& header = peer.header;
  peer.is_matched = false;
  peer.target = nullptr;
  if (header.kind == Kind::kEager) {
    peer.matched = find_receive(rank, header.tag);
    if (peer.matched != receives_.end() && fits(header, rank, *peer.matched)) {
      // Taken out of the list of posted receives now, or a second message could match it, too.
      peer.incoming.push_front({0, std::move(*peer.matched), 0});
      receives_.erase(peer.matched);
      peer.is_matched = true;
      peer.target = peer.incoming.front().request.data;
    } else {
      peer.eager.resize(header.payload);
      peer.target = peer.eager.data();
    }
  } else if (header.kind == Kind::kData) {
    for (Incoming& incoming : peer.incoming) {
      if (incoming.id != header.id || header.size != incoming.request.size) continue;
      if (incoming.received + header.payload <= header.size) peer.target = incoming.request.data + header.offset;
    }
    if (peer.target == nullptr) throw Error("a message is damaged");
  }
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
        // A receive may have been posted while the payload was on its way.
        const std::vector<std::byte> payload = std::exchange(peer.eager, {});
        const auto found = find_receive(rank, header.tag);
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
    case Kind::kAnnounce: {
      const auto refused = std::find(peer.refused.begin(), peer.refused.end(), header.tag);
      if (refused != peer.refused.end()) {
        peer.arrived.push_back({header, {}});
        peer.refused.erase(refused);
        refuse(rank, header.tag);
        break;
      }
      const auto found = find_receive(rank, header.tag);
      if (found == receives_.end()) {
        peer.arrived.push_back({header, {}});
        break;
      }
      Request request = std::move(*found);
      receives_.erase(found);
      if (fits(header, rank, request)) accept(rank, header, std::move(request));
      break;
    }
    case Kind::kReady: {
      const auto found = std::find_if(peer.announced.begin(), peer.announced.end(),
                                      [&](const auto& item) { return item.first == header.id; });
      if (found == peer.announced.end()) throw Error("a message is damaged");
      const Request request = std::move(found->second);
      peer.announced.erase(found);
      for (std::size_t offset = 0; offset < request.size; offset += kFramePayload) {
        const std::size_t payload = std::min(kFramePayload, request.size - offset);
        const Header data{kMagic, Kind::kData, request.dtype, 0, request.tag, header.id, request.size, payload, offset};
        push(rank, data, request.data + offset, offset + payload == request.size ? request.operation : nullptr);
      }
      break;
    }
    case Kind::kRefuse: {
      const auto found = std::find_if(peer.announced.begin(), peer.announced.end(), [&](const auto& item) {
        return item.first == header.id && item.second.is_offer;
      });
      if (found == peer.announced.end()) throw Error("a message is damaged");
      found->second.operation->complete(nullptr);
      peer.announced.erase(found);
      break;
    }
    case Kind::kData: {
      const auto found = std::find_if(peer.incoming.begin(), peer.incoming.end(),
                                      [&](const Incoming& incoming) { return incoming.id == header.id; });
      found->received += header.payload;
      if (found->received == found->request.size) {
        const auto operation = found->request.operation;
        peer.incoming.erase(found);
        operation->complete(nullptr, rank);
      }
      break;
    }
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
      const auto operation = std::move(out.operation);
      peer.outgoing.pop_front();
      if (operation) operation->complete(nullptr);
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
    for (const Incoming& incoming : peer.incoming) first = std::min(first, incoming.request.deadline);
  }
  return first;
}

const Mailbox::Request* Mailbox::overdue(Clock::time_point now) const {
  for (const Request& request : receives_) {
    if (request.deadline <= now) return &request;
  }
  for (const Peer& peer : peers_) {
    for (const auto& [id, request] : peer.announced) {
      if (request.deadline <= now) return &request;
    }
    for (const Incoming& incoming : peer.incoming) {
      if (incoming.request.deadline <= now) return &incoming.request;
    }
  }
  return nullptr;
}

const Mailbox::Request* Mailbox::waiting_for(int rank) const {
  for (const Request& request : receives_) {
    if (request.peer == rank) return &request;
  }
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  for (const auto& [id, request] : peer.announced) {
    if (!request.is_offer) return &request;
  }
  if (!peer.incoming.empty()) return &peer.incoming.front().request;
  return nullptr;
}

void Mailbox::fail(const std::exception_ptr& error) {
  for (Request& request : receives_) request.operation->complete(error);
  receives_.clear();
  for (Peer& peer : peers_) {
    for (Outgoing& out : peer.outgoing) {
      if (out.operation) out.operation->complete(error);
    }
    for (auto& [id, request] : peer.announced) request.operation->complete(error);
    for (Incoming& incoming : peer.incoming) incoming.request.operation->complete(error);
    peer.outgoing.clear();
    peer.announced.clear();
    peer.incoming.clear();
    peer.arrived.clear();
    peer.stream.reset();
  }
}

}  // namespace smdp
