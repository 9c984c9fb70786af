#include "transport/control.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/tcp/socket.h"

namespace smdp {
namespace {

enum class Type : char { kAbort = 'A', kLeft = 'L', kPing = 'P', kPong = 'Q', kInquire = 'I', kVerdict = 'V' };

constexpr std::size_t kMaxText = 16'384;
constexpr std::size_t kMaxMessage = kMaxText + 65'536;

template <class T>
void put(std::string& body, T value) {
  body.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads what put() wrote; a short body gives zeros, never a read outside of it.
class Reader {
 public:
  explicit Reader(const std::string& body) : body_(body) {}
  template <class T>
  T get() {
    T value{};
    if (body_.size() - position_ >= sizeof value) {
      std::memcpy(&value, body_.data() + position_, sizeof value);
      position_ += sizeof value;
    } else {
      position_ = body_.size();
    }
    return value;
  }
  std::string rest() { return body_.substr(position_); }

 private:
  const std::string& body_;
  std::size_t position_ = 0;
};

std::string start(Type type, int origin) {
  std::string body;
  put(body, type);
  put(body, static_cast<std::int32_t>(origin));
  return body;
}

bool is_process_end(int error) { return error == 0 || error == ECONNRESET || error == EPIPE; }

std::string join(const Members& members, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + members.who(rank);
  return text;
}

}  // namespace

Control::Control(Progress& progress, const Members& members, std::vector<FileDescriptor> connections,
                 Callbacks callbacks)
    : progress_(progress), members_(members), callbacks_(std::move(callbacks)), peers_(connections.size()) {
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

void Control::abort(const Failure& failure) {
  std::string body = start(Type::kAbort, members_.rank);
  put(body, failure.kind);
  put(body, static_cast<std::uint32_t>(failure.lost.size()));
  for (const int rank : failure.lost) put(body, static_cast<std::int32_t>(rank));
  body += failure.text.substr(0, kMaxText);
  broadcast(body, -1);
}

void Control::leave(const std::string& reason) {
  broadcast(start(Type::kLeft, members_.rank) + reason.substr(0, kMaxText), -1);
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
  put(peer.outgoing, static_cast<std::uint32_t>(body.size()));
  peer.outgoing += body;
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
    if (written < 0) break;  // EAGAIN: later; an error shows up as an event, too
    peer.outgoing.erase(0, static_cast<std::size_t>(written));
  }
  progress_.modify(peer.socket.get(), peer.outgoing.empty() ? static_cast<std::uint32_t>(EPOLLIN)
                                                            : static_cast<std::uint32_t>(EPOLLIN | EPOLLOUT));
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
      close(rank);
      on_lost(rank, error);
      return;
    }
    peer.received.append(buffer, static_cast<std::size_t>(got));
    while (peer.received.size() >= sizeof(std::uint32_t)) {
      std::uint32_t length = 0;
      std::memcpy(&length, peer.received.data(), sizeof length);
      if (length > kMaxMessage) {
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
  Reader reader(body);
  const Type type = reader.get<Type>();
  const int origin = reader.get<std::int32_t>();
  if (origin < 0 || origin >= members_.size) return;
  switch (type) {
    case Type::kAbort: {
      if (members_.rank == 0) broadcast(body, rank);
      Failure failure;
      failure.kind = reader.get<ErrorKind>();
      const auto count =
          std::min<std::uint32_t>(reader.get<std::uint32_t>(), static_cast<std::uint32_t>(members_.size));
      for (std::uint32_t i = 0; i < count; ++i) failure.lost.push_back(reader.get<std::int32_t>());
      failure.text = reader.rest();
      callbacks_.on_abort(failure);
      break;
    }
    case Type::kLeft:
      if (members_.rank == 0) broadcast(body, rank);
      if (static_cast<std::size_t>(origin) < peers_.size()) peers_[static_cast<std::size_t>(origin)].left = true;
      callbacks_.on_left(origin, reader.rest());
      break;
    case Type::kPing: {
      const Status status = callbacks_.status();
      std::string answer = start(Type::kPong, members_.rank);
      put(answer, status.last);
      put(answer, static_cast<std::uint8_t>(status.busy));
      send(rank, answer);
      break;
    }
    case Type::kPong: {
      if (inquiries_.empty()) break;
      const auto index = static_cast<std::size_t>(origin);
      answered_[index] = true;
      statuses_[index].last = reader.get<Fingerprint>();
      statuses_[index].busy = reader.get<std::uint8_t>() != 0;
      break;
    }
    case Type::kInquire:
      if (members_.rank == 0) start_inquiry({origin, reader.get<std::uint64_t>()});
      break;
    case Type::kVerdict: {
      const std::vector<std::function<void(const std::string&)>> waiting = std::exchange(waiting_, {});
      for (const auto& answer : waiting) answer(reader.rest());
      break;
    }
  }
}

void Control::on_lost(int rank, int error) {
  if (peers_[static_cast<std::size_t>(rank)].left) return;
  Failure failure{ErrorKind::kPeerLost, "", {rank}};
  if (is_process_end(error)) {
    failure.text = members_.who(rank) + " died: its process is gone.";
  } else {
    failure.lost = members_.hosts[members_.host_of(rank)];
    failure.text = join(members_, failure.lost) + (failure.lost.size() == 1 ? " is" : " are") +
                   " unreachable: " + std::strerror(error) + ". Its host is down or cut off the network.";
    if (members_.rank != 0) failure.text += " (Or this one is: all connections to other hosts go through rank 0's.)";
  }
  if (members_.rank == 0) abort(failure);
  callbacks_.on_abort(failure);
}

void Control::inquire(std::uint64_t sequence, std::function<void(const std::string&)> answer) {
  waiting_.push_back(std::move(answer));
  if (members_.rank == 0) {
    start_inquiry({0, sequence});
  } else {
    std::string body = start(Type::kInquire, members_.rank);
    put(body, sequence);
    ask(0, body);
  }
}

void Control::start_inquiry(Inquiry inquiry) {
  inquiries_.push_back(inquiry);
  if (inquiries_.size() > 1) return;  // joins the one under way
  answered_.assign(static_cast<std::size_t>(members_.size), false);
  statuses_.assign(static_cast<std::size_t>(members_.size), {});
  answered_[0] = true;
  statuses_[0] = callbacks_.status();
  inquiry_ends_ = Clock::now() + kInquiry;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) ask(static_cast<int>(rank), start(Type::kPing, 0));
}

std::string Control::verdict(std::uint64_t sequence) const {
  std::vector<int> silent;
  std::string behind;
  for (int rank = 0; rank < members_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (!answered_[index]) {
      silent.push_back(rank);
    } else if (statuses_[index].last.sequence < sequence) {
      behind += (behind.empty() ? "" : "; ") + members_.who(rank) + " has not called it: " +
                (statuses_[index].last.sequence == 0
                     ? "it has called no collective yet"
                     : (statuses_[index].busy ? "it is in " : "its last one was ") + statuses_[index].last.describe());
    }
  }
  std::string text;
  if (!silent.empty()) {
    text =
        join(members_, silent) + (silent.size() == 1 ? " does" : " do") + " not answer: stopped, or its machine hangs";
  }
  if (!behind.empty()) text += (text.empty() ? "" : "; ") + behind;
  return text;
}

std::string Control::mismatch() const {
  for (std::size_t second = 1; second < statuses_.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const Fingerprint& a = statuses_[first].last;
      const Fingerprint& b = statuses_[second].last;
      if (a.sequence != b.sequence || a.matches(b)) continue;
      return describe_mismatch(members_.who(static_cast<int>(first)), a, members_.who(static_cast<int>(second)), b);
    }
  }
  return "";
}

bool Control::poll() {
  if (Clock::now() < inquiry_ends_ &&
      (inquiries_.empty() || std::find(answered_.begin(), answered_.end(), false) != answered_.end())) {
    return false;
  }
  if (inquiries_.empty()) return false;
  inquiry_ends_ = Clock::time_point::max();
  if (const std::string text = mismatch(); !text.empty()) {
    const Failure failure{ErrorKind::kMismatch, text, {}};
    abort(failure);
    callbacks_.on_abort(failure);
  }
  for (const Inquiry& inquiry : std::exchange(inquiries_, {})) {
    const std::string text = verdict(inquiry.sequence);
    if (inquiry.from == 0) {
      for (const auto& answer : std::exchange(waiting_, {})) answer(text);
    } else {
      send(inquiry.from, start(Type::kVerdict, 0) + text);
    }
  }
  return true;
}

Clock::time_point Control::deadline() { return inquiry_ends_; }

}  // namespace smdp
