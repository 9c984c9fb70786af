#include "transport/control.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "transport/answers.h"
#include "transport/control_messages.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

// How long a leaving rank tries to announce it if the kernel is short of memory or a peer does not read.
constexpr std::chrono::milliseconds kLastWords{500};
constexpr std::chrono::milliseconds kLastWordsPause{1};

bool may_pass(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM; }

bool is_process_end(int error) { return error == 0 || error == ECONNRESET || error == EPIPE; }

}  // namespace

Control::Control(Progress& progress, const Members& members, std::vector<FileDescriptor> connections,
                 Callbacks callbacks)
    : progress_(progress),
      members_(members),
      callbacks_(std::move(callbacks)),
      peers_(connections.size()),
      answers_(std::make_unique<Answers>(members)) {
  for (std::size_t rank = 0; rank < connections.size(); ++rank) peers_[rank].socket = std::move(connections[rank]);
}

void Control::open() {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].socket.get() < 0) continue;
    const int index = static_cast<int>(rank);
    progress_.add(peers_[rank].socket.get(), EPOLLIN, [this, index](std::uint32_t events) { on_event(index, events); });
  }
  progress_.add(this);
}

Control::~Control() {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) close(static_cast<int>(rank));
  progress_.remove(this);
}

void Control::abort(const Failure& failure) { broadcast(abort_message(members_.rank, failure), -1); }

void Control::abort_over(const std::vector<FileDescriptor>& connections, int rank, const Failure& failure) {
  const std::string message = framed(abort_message(rank, failure));
  for (const FileDescriptor& connection : connections) {
    if (connection.get() < 0) continue;
    // This is the first message, so there is room for it.
    [[maybe_unused]] const ssize_t sent =
        ::send(connection.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void Control::refuse(std::uint64_t sequence, const std::string& text) {
  refused_.insert(sequence);
  broadcast(refused_message(members_.rank, sequence, text), -1);
}

void Control::leave(const std::string& reason) {
  broadcast(left_message(members_.rank, reason), -1);
  const auto end = std::chrono::steady_clock::now() + kLastWords;
  const auto is_unsent = [](const Peer& peer) { return peer.socket.get() >= 0 && !peer.outgoing.empty(); };
  while (std::any_of(peers_.begin(), peers_.end(), is_unsent) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kLastWordsPause);
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      if (is_unsent(peers_[rank])) flush(static_cast<int>(rank));
    }
  }
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) close(static_cast<int>(rank));
}

void Control::broadcast(const std::string& body, int except) {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<int>(rank) != except) send(static_cast<int>(rank), body);
  }
}

void Control::send(int rank, const std::string& body) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.socket.get() < 0) return;
  peer.outgoing += framed(body);
  flush(rank);
}

void Control::ask(int rank, const std::string& body) {
  if (!is_probed(peers_[static_cast<std::size_t>(rank)].socket)) send(rank, body);
}

void Control::flush(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  while (!peer.outgoing.empty()) {
    const ssize_t written =
        ::send(peer.socket.get(), peer.outgoing.data(), peer.outgoing.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && !may_pass(errno)) peer.outgoing.clear();  // the connection is broken, which an event reports
    if (written < 0) break;
    peer.outgoing.erase(0, static_cast<std::size_t>(written));
  }
  if (peer.awaits_room == !peer.outgoing.empty()) return;
  peer.awaits_room = !peer.outgoing.empty();
  try {
    progress_.modify(peer.socket.get(), peer.awaits_room ? static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT)
                                                         : static_cast<std::uint32_t>(EPOLLIN));
  } catch (const ShortageError& error) {
    lacks(error);
  }
}

void Control::lacks(const ShortageError& error) {
  if (std::exchange(has_failed_, true)) return;
  const std::string reason = without_tag(error.what());
  abort({ErrorKind::kInternal, members_.tag() + ": " + reason, {}});
  callbacks_.on_abort({ErrorKind::kInternal, reason, {}});
}

void Control::close(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.socket.get() < 0) return;
  progress_.remove(peer.socket.get());
  peer.socket.reset();
}

void Control::on_event(int rank, std::uint32_t events) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if ((events & EPOLLOUT) != 0) flush(rank);
  char buffer[4096];
  while (peer.socket.get() >= 0) {
    const ssize_t got = ::recv(peer.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      const int error = got == 0 ? 0 : errno;
      if (is_shortage(error)) {
        const ShortageError lack = shortage("recv", members_.who(rank), error);
        lacks(lack);
        close(rank);  // otherwise the event would repeat at once
        return;
      }
      close(rank);
      on_lost(rank, error);
      return;
    }
    peer.received.append(buffer, static_cast<std::size_t>(got));
    while (peer.received.size() >= sizeof(std::uint32_t)) {
      std::uint32_t length = 0;
      std::memcpy(&length, peer.received.data(), sizeof length);
      if (length > kMaxControlMessage) {
        close(rank);
        on_lost(rank, EPROTO);
        return;
      }
      if (peer.received.size() < sizeof length + length) break;
      const std::string body = peer.received.substr(sizeof length, length);
      peer.received.erase(0, sizeof length + length);
      on_message(rank, body);
      if (peer.socket.get() < 0) return;
    }
  }
}

void Control::on_message(int rank, const std::string& body) {
  ControlReader reader(body);
  const ControlType type = reader.get<ControlType>();
  const int origin = reader.get<std::int32_t>();
  if (origin < 0 || origin >= members_.size) return;
  switch (type) {
    case ControlType::kAbort:
      if (members_.rank == 0) broadcast(body, rank);
      callbacks_.on_abort(read_failure(reader, members_.size));
      break;
    case ControlType::kRefused: {
      const auto sequence = reader.get<std::uint64_t>();
      if (!refused_.insert(sequence).second) break;  // several ranks may find and report a mismatch at the same time
      if (members_.rank == 0) broadcast(body, rank);
      callbacks_.on_refused(sequence, reader.rest());
      break;
    }
    case ControlType::kLeft:
      if (members_.rank == 0) broadcast(body, rank);
      if (static_cast<std::size_t>(origin) < peers_.size()) peers_[static_cast<std::size_t>(origin)].left = true;
      callbacks_.on_left(origin, reader.rest());
      break;
    case ControlType::kPing:
      send(rank, pong_message(members_.rank, reader.get<std::uint64_t>(), callbacks_.status()));
      break;
    case ControlType::kPong:
      if (inquiries_.empty() || reader.get<std::uint64_t>() != number_) break;
      answers_->add(origin, read_status(reader));
      break;
    case ControlType::kInquire:
      if (members_.rank == 0) start_inquiry({origin, reader.get<std::uint64_t>()});
      break;
    case ControlType::kVerdict:
      hand_out(read_verdict(reader));
      break;
  }
}

void Control::on_lost(int rank, int error) {
  if (peers_[static_cast<std::size_t>(rank)].left) return;
  Failure failure{ErrorKind::kPeerLost, "", {rank}};
  if (is_process_end(error)) {
    failure.text = members_.who(rank) + " died: its process is gone.";
  } else {
    failure.lost = members_.hosts[members_.host_of(rank)];
    failure.text = members_.who(failure.lost) + (failure.lost.size() == 1 ? " is" : " are") +
                   " unreachable: " + std::strerror(error) + ". Its host is down or disconnected from the network.";
    if (members_.rank != 0)
      failure.text += " (Or this host is disconnected: all control connections go through rank 0's host.)";
  }
  if (members_.rank == 0) abort(failure);
  callbacks_.on_abort(failure);
}

void Control::inquire(std::uint64_t sequence, std::function<void(const Verdict&)> answer) {
  waiting_.emplace_back(sequence, std::move(answer));
  if (members_.rank == 0) {
    start_inquiry({0, sequence});
  } else {
    ask(0, inquire_message(members_.rank, sequence));
  }
}

void Control::start_inquiry(Inquiry inquiry) {
  inquiries_.push_back(inquiry);
  if (inquiries_.size() > 1) return;  // joins the running inquiry
  answers_->restart(callbacks_.status());
  inquiry_ends_ = Clock::now() + kInquiry;
  const std::string question = ping_message(++number_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) ask(static_cast<int>(rank), question);
}

void Control::hand_out(const Verdict& verdict) {
  for (auto& [sequence, answer] : std::exchange(waiting_, {})) {
    if (sequence == verdict.sequence) {
      answer(verdict);
    } else if (sequence == 0 || sequence > verdict.sequence) {
      waiting_.emplace_back(sequence, std::move(answer));
    }
  }
}

bool Control::poll() {
  if (inquiries_.empty() || (Clock::now() < inquiry_ends_ && !answers_->are_complete())) return false;
  inquiry_ends_ = Clock::time_point::max();
  if (const auto [sequence, text] = answers_->mismatch(); sequence != 0) {
    refuse(sequence, text);
    callbacks_.on_refused(sequence, text);
  } else if (const std::string cycle = answers_->deadlock(), apart = answers_->separate_meetings();
             !cycle.empty() || !apart.empty()) {
    const Failure failure{ErrorKind::kMismatch, cycle.empty() ? apart : cycle, {}, true};
    abort(failure);
    callbacks_.on_abort(failure);
  }
  std::vector<bool> has_left;
  for (const Peer& peer : peers_) has_left.push_back(peer.left);
  for (const Inquiry& inquiry : std::exchange(inquiries_, {})) {
    const Verdict found = answers_->verdict(inquiry.sequence, has_left);
    inquiry.from == 0 ? hand_out(found) : send(inquiry.from, verdict_message(found));
  }
  return true;
}

Clock::time_point Control::deadline() { return inquiry_ends_; }

}  // namespace smdp
