#include "transport/tcp/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "common/failure.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// Length of a frame: long enough to amortize its header, short enough to share streams evenly.
constexpr std::size_t kFramePayload = std::size_t{256} << 10;
constexpr std::size_t kScrapBytes = std::size_t{64} << 10;
// What one readiness event may move before other descriptors get their turn.
constexpr std::size_t kBytesPerEvent = std::size_t{4} << 20;

}  // namespace

TcpLink::TcpLink(Progress& progress, const Members& members, int peer, std::vector<FileDescriptor> streams,
                 Handlers handlers)
    : progress_(progress), members_(members), peer_(peer), handlers_(std::move(handlers)) {
  for (FileDescriptor& socket : streams) {
    streams_.push_back(std::make_unique<Stream>());
    Stream& stream = *streams_.back();
    stream.socket = std::move(socket);
    stream.events = EPOLLIN;
    progress_.add(stream.socket.get(), EPOLLIN, [this, &stream](std::uint32_t events) { on_event(stream, events); });
  }
}

TcpLink::~TcpLink() { reset(); }

void TcpLink::reset() {
  posted_.clear();
  for (const auto& stream : streams_) {
    stream->outgoing.clear();
    stream->has_target = false;
    if (stream->socket.get() >= 0) {
      progress_.remove(stream->socket.get());
      stream->socket.reset();
    }
  }
  broken_ = true;
}

void TcpLink::abandon() {
  if (broken_ || abandoned_) return;
  abandoned_ = true;
  posted_.clear();
  for (const auto& stream : streams_) {
    stream->outgoing.clear();
    stream->has_target = false;
    stream->events = 0;
    if (stream->socket.get() < 0) continue;
    try {
      progress_.modify(stream->socket.get(), 0);
    } catch (const ShortageError&) {  // the group is already failing, and on_event() does nothing any more
    }
  }
}

void TcpLink::drop(std::uint64_t sequence) {
  if (broken_ || abandoned_ || was_dropped(sequence)) return;
  dropped_.push_back(sequence);
  scrap_.resize(kScrapBytes);
  for (const auto& stream : streams_) {
    if (stream->has_target && stream->frame.fingerprint.sequence == sequence) stream->is_dropped = true;
    drop_outgoing(*stream, sequence);
  }
  posted_.remove_if([sequence](const Posted& posted) { return posted.key.sequence == sequence; });
  for (const auto& stream : streams_) {
    if (stream->stalled) read_some(*stream);
  }
}

void TcpLink::drop_outgoing(Stream& stream, std::uint64_t sequence) {
  for (auto out = stream.outgoing.begin(); out != stream.outgoing.end();) {
    if (out->frame.fingerprint.sequence != sequence) {
      ++out;
    } else if (out->done != 0) {
      // The data's memory may have been freed with the coroutine that threw; the peer discards the frame.
      out->zeros.assign(out->frame.payload, std::byte{0});
      out->data = out->zeros.data();
      out->pending = nullptr;
      ++out;
    } else {
      stream.queued -= sizeof(Frame) + out->frame.payload;
      out = stream.outgoing.erase(out);
    }
  }
  update_events(stream);
}

bool TcpLink::was_dropped(std::uint64_t sequence) const {
  return std::binary_search(dropped_.begin(), dropped_.end(), sequence);
}

void TcpLink::enter(const Fingerprint& fingerprint) {
  current_ = fingerprint;
  entered_[fingerprint.sequence % entered_.size()] = fingerprint;
  for (const auto& stream : streams_) {
    if (stream->stalled) read_some(*stream);
  }
}

void TcpLink::send(std::uint64_t slot, const std::byte* data, std::size_t size, Pending& pending, std::size_t streams) {
  ++pending;
  if (broken_ || abandoned_ || was_dropped(current_.sequence))
    return;  // the group reports the error to the waiting
             // thread
  std::size_t offset = 0;
  // The message counts as sent when its last frame is. Frames on other streams may still be queued, so every frame is
  // counted.
  do {
    const std::size_t payload = std::min(kFramePayload, size - offset);
    Stream& stream = next_stream(std::min(streams, streams_.size()));
    Outgoing outgoing{};
    outgoing.frame.slot = slot;
    outgoing.frame.offset = offset;
    outgoing.frame.payload = payload;
    outgoing.frame.total = size;
    outgoing.frame.fingerprint = current_;
    outgoing.data = data + offset;
    outgoing.pending = &pending;
    if (offset != 0) ++pending;
    const bool idle = stream.outgoing.empty();
    stream.outgoing.push_back(outgoing);
    stream.queued += sizeof(Frame) + payload;
    if (idle) write_some(stream);
    offset += payload;
  } while (offset < size && !broken_);
}

// Returns the stream with the least to send; among the ones that the kernel keeps up with, they take turns.
TcpLink::Stream& TcpLink::next_stream(std::size_t streams) {
  std::size_t best = turn_ % streams;
  for (std::size_t i = 1; i < streams; ++i) {
    const std::size_t other = (turn_ + i) % streams;
    if (streams_[other]->queued < streams_[best]->queued) best = other;
  }
  turn_ = best + 1;
  return *streams_[best];
}

void TcpLink::receive(std::uint64_t slot, std::byte* data, std::size_t size, Pending& pending) {
  ++pending;
  if (broken_ || abandoned_ || was_dropped(current_.sequence)) return;
  posted_.push_back({{current_.sequence, slot}, data, size, 0, 0, &pending});
  for (const auto& stream : streams_) {
    if (stream->stalled) read_some(*stream);
  }
}

void TcpLink::on_event(Stream& stream, std::uint32_t events) {
  if (abandoned_) return;
  if ((events & EPOLLOUT) != 0) write_some(stream);
  if (!broken_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    if (stream.stalled && (events & EPOLLIN) == 0) {
      ended(stream);
    } else {
      read_some(stream);
    }
  }
}

void TcpLink::write_some(Stream& stream) {
  if (stream.socket.get() < 0 || abandoned_) return;
  std::size_t budget = kBytesPerEvent;
  while (!stream.outgoing.empty() && budget > 0) {
    Outgoing& out = stream.outgoing.front();
    iovec parts[2];
    std::size_t count = 0;
    if (out.done < sizeof(Frame)) {
      parts[count++] = {reinterpret_cast<std::byte*>(&out.frame) + out.done, sizeof(Frame) - out.done};
    }
    const std::size_t sent = out.done < sizeof(Frame) ? 0 : out.done - sizeof(Frame);
    if (out.frame.payload > sent) {
      parts[count++] = {const_cast<std::byte*>(out.data) + sent, out.frame.payload - sent};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t written = ::sendmsg(stream.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      failed("sendmsg");
      return;
    }
    const auto n = static_cast<std::size_t>(written);
    out.done += n;
    stream.queued -= n;
    budget -= std::min(budget, n);
    if (out.done == sizeof(Frame) + out.frame.payload) {
      if (out.pending != nullptr) --*out.pending;
      stream.outgoing.pop_front();
    }
  }
  update_events(stream);
}

bool TcpLink::find_target(Stream& stream) {
  const Frame& frame = stream.frame;
  if (was_dropped(frame.fingerprint.sequence)) {
    stream.has_target = stream.is_dropped = true;
    return true;
  }
  if (frame.fingerprint.sequence == current_.sequence && !frame.fingerprint.matches(current_)) {
    handlers_.on_mismatch(current_.sequence, std::make_exception_ptr(MismatchError(describe_mismatch(
                                                 members_.tag(), current_, members_.who(peer_), frame.fingerprint))));
    return false;
  }
  const MessageKey key{frame.fingerprint.sequence, frame.slot};
  for (auto it = posted_.begin(); it != posted_.end(); ++it) {
    if (it->key != key) continue;
    const bool is_whole = frame.offset <= frame.total && frame.payload <= frame.total - frame.offset;
    if (it->size == frame.total && (!is_whole || it->claimed + frame.payload > it->size)) {
      broken("a frame is damaged");
      return false;
    }
    if (it->size != frame.total) {
      handlers_.on_mismatch(current_.sequence,
                            std::make_exception_ptr(CountMismatch(
                                describe_sizes(members_.tag(), it->size, members_.who(peer_), frame.total, current_))));
      return false;
    }
    it->claimed += frame.payload;
    stream.target = it;
    stream.has_target = true;
    return true;
  }
  if (frame.fingerprint.sequence < current_.sequence) {
    // The operation ended with everything that it expects, so its peer has sent too much.
    const Fingerprint& own = entered_[frame.fingerprint.sequence % entered_.size()];
    const bool is_known = own.sequence == frame.fingerprint.sequence;
    const std::string text = !is_known || own.matches(frame.fingerprint)
                                 ? members_.prefix() + "expects nothing more from " + members_.who(peer_) + " in " +
                                       frame.fingerprint.describe() + ", which sends " + std::to_string(frame.total) +
                                       " bytes. The counts of a sender must equal those of its receiver."
                                 : describe_mismatch(members_.tag(), own, members_.who(peer_), frame.fingerprint);
    handlers_.on_mismatch(frame.fingerprint.sequence, std::make_exception_ptr(MismatchError(text)));
  }
  return false;
}

void TcpLink::finish_frame(Stream& stream) {
  if (!stream.is_dropped) {
    Posted& posted = *stream.target;
    posted.received += stream.frame.payload;
    if (posted.received == posted.size) {
      --*posted.pending;
      posted_.erase(stream.target);
    }
  }
  stream.has_target = stream.is_dropped = false;
  stream.header_done = 0;
  stream.payload_done = 0;
}

void TcpLink::read_some(Stream& stream) {
  if (stream.socket.get() < 0 || abandoned_) return;
  std::size_t budget = kBytesPerEvent;
  while (!broken_ && budget > 0) {
    if (stream.header_done == sizeof(Frame) && !stream.has_target) {
      if (stream.frame.magic != Frame::kMagic || stream.frame.payload > Frame::kMaxPayload) {
        broken("a frame is damaged");
        return;
      }
      stream.stalled = !find_target(stream);
      if (stream.stalled || broken_) break;
      if (stream.frame.payload == 0) {
        finish_frame(stream);
        continue;
      }
    }
    const bool in_header = stream.header_done < sizeof(Frame);
    std::size_t want = in_header ? sizeof(Frame) - stream.header_done : stream.frame.payload - stream.payload_done;
    std::byte* to = nullptr;
    if (in_header) {
      to = reinterpret_cast<std::byte*>(&stream.frame) + stream.header_done;
    } else if (stream.is_dropped) {
      to = scrap_.data();
      want = std::min(want, scrap_.size());
    } else {
      to = stream.target->data + stream.frame.offset + stream.payload_done;
    }
    const ssize_t got = ::recv(stream.socket.get(), to, want, MSG_DONTWAIT);
    if (got == 0) {
      ended(stream);
      return;
    }
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      failed("recv");
      return;
    }
    const auto n = static_cast<std::size_t>(got);
    budget -= std::min(budget, n);
    if (in_header) {
      stream.header_done += n;
    } else {
      stream.payload_done += n;
      if (stream.payload_done == stream.frame.payload) finish_frame(stream);
    }
  }
  if (!broken_) update_events(stream);
}

void TcpLink::update_events(Stream& stream) {
  const std::uint32_t events = (stream.stalled ? 0U : static_cast<std::uint32_t>(EPOLLIN)) |
                               (stream.outgoing.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT));
  if (events == stream.events || stream.socket.get() < 0) return;
  stream.events = events;
  try {
    progress_.modify(stream.socket.get(), events);
  } catch (const ShortageError& error) {
    lacks(error);
  }
}

// The peer has closed one stream; what it sent on the others may still be in transit.
void TcpLink::ended(Stream& stream) {
  progress_.remove(stream.socket.get());
  stream.socket.reset();
  const bool all_ended =
      std::all_of(streams_.begin(), streams_.end(), [](const auto& one) { return one->socket.get() < 0; });
  if (all_ended) {
    broken("connection closed");
  } else {
    handlers_.on_broken(peer_, "connection closed");
  }
}

// A system call on one of its sockets has failed, because of a shortage here or because of the peer.
void TcpLink::failed(const char* call) {
  const int error = errno;
  if (is_shortage(error)) {
    lacks(shortage(call, members_.who(peer_), error));
  } else {
    broken(std::strerror(error));
  }
}

void TcpLink::lacks(const ShortageError& error) {
  reset();
  handlers_.on_error(std::make_exception_ptr(ShortageError(members_.prefix() + without_tag(error.what()))));
}

void TcpLink::broken(const std::string& reason) {
  if (broken_) return;
  reset();
  handlers_.on_broken(peer_, reason);
}

}  // namespace smdp
