#include "transport/control.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "transport/tcp/socket.h"

namespace smdp {
namespace {

enum class Type : char {
  kAbort = 'A',
  kLeft = 'L',
  kPing = 'P',
  kPong = 'Q',
  kInquire = 'I',
  kVerdict = 'V',
  kRefused = 'R'
};

constexpr std::size_t kMaxText = 16'384;
// A rank that has been stopped says for a moment that it still makes a group: not for so long.
constexpr std::chrono::seconds kSeparate{4};
// Of a list of waits that travels: one cycle is enough.
constexpr std::size_t kMaxWaits = 64;
constexpr std::size_t kMaxMessage = kMaxText + 65'536;

// How long a rank that leaves tries to say so where the kernel is short of memory or a peer does not read.
constexpr std::chrono::milliseconds kLastWords{500};
constexpr std::chrono::milliseconds kLastWordsPause{1};

bool may_pass(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM; }

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
  bool is_over() const { return position_ == body_.size(); }

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

std::string abort_message(int origin, const Failure& failure) {
  std::string body = start(Type::kAbort, origin);
  put(body, failure.kind);
  put(body, static_cast<std::uint8_t>(failure.is_deadlock));
  put(body, static_cast<std::uint32_t>(failure.lost.size()));
  for (const int rank : failure.lost) put(body, static_cast<std::int32_t>(rank));
  return body + failure.text.substr(0, kMaxText);
}

void put_list(std::string& body, const std::vector<std::uint64_t>& list) {
  const auto count = static_cast<std::uint32_t>(std::min(list.size(), kMaxWaits));
  put(body, count);
  for (std::uint32_t i = 0; i < count; ++i) put(body, list[i]);
}

std::vector<std::uint64_t> get_list(Reader& reader) {
  std::vector<std::uint64_t> list;
  for (auto count = reader.get<std::uint32_t>(); count > 0 && !reader.is_over(); --count) {
    list.push_back(reader.get<std::uint64_t>());
  }
  return list;
}

bool contains(const std::vector<std::uint64_t>& list, std::uint64_t wait) {
  return std::find(list.begin(), list.end(), wait) != list.end();
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

void Control::abort(const Failure& failure) { broadcast(abort_message(members_.rank, failure), -1); }

void Control::abort_over(const std::vector<FileDescriptor>& connections, int rank, const Failure& failure) {
  const std::string body = abort_message(rank, failure);
  std::string message;
  put(message, static_cast<std::uint32_t>(body.size()));
  message += body;
  for (const FileDescriptor& connection : connections) {
    if (connection.get() < 0) continue;
    // Nothing was sent before, so there is room for it.
    [[maybe_unused]] const ssize_t sent =
        ::send(connection.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void Control::refuse(std::uint64_t sequence, const std::string& text) {
  refused_.insert(sequence);
  std::string body = start(Type::kRefused, members_.rank);
  put(body, sequence);
  broadcast(body + text.substr(0, kMaxText), -1);
}

void Control::leave(const std::string& reason) {
  broadcast(start(Type::kLeft, members_.rank) + reason.substr(0, kMaxText), -1);
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
    if (written < 0 && !may_pass(errno)) peer.outgoing.clear();  // the connection is broken, as an event tells
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
        close(rank);  // else the event comes again at once
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
      failure.is_deadlock = reader.get<std::uint8_t>() != 0;
      const auto count =
          std::min<std::uint32_t>(reader.get<std::uint32_t>(), static_cast<std::uint32_t>(members_.size));
      for (std::uint32_t i = 0; i < count; ++i) failure.lost.push_back(reader.get<std::int32_t>());
      failure.text = reader.rest();
      callbacks_.on_abort(failure);
      break;
    }
    case Type::kRefused: {
      const auto sequence = reader.get<std::uint64_t>();
      if (!refused_.insert(sequence).second) break;  // ranks that find a mismatch at the same time all say so
      if (members_.rank == 0) broadcast(body, rank);
      callbacks_.on_refused(sequence, reader.rest());
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
      put(answer, reader.get<std::uint64_t>());
      put(answer, status.last);
      put(answer, static_cast<std::uint8_t>(status.busy));
      put(answer, static_cast<std::uint8_t>(status.has_given_up));
      put(answer, status.called);
      put(answer, status.wait);
      put(answer, status.other_wait.wait);
      put(answer, static_cast<std::uint8_t>(status.other_wait.is_for_all));
      put(answer, status.other_wait.meeting);
      put_list(answer, status.other_wait.made);
      put(answer, static_cast<std::uint8_t>(status.other_wait.replaces_this));
      put_list(answer, status.other_wait.awaited);
      send(rank, answer + status.other_wait.what.substr(0, kMaxText));
      break;
    }
    case Type::kPong: {
      if (inquiries_.empty() || reader.get<std::uint64_t>() != number_) break;
      const auto index = static_cast<std::size_t>(origin);
      answered_[index] = true;
      Status& status = statuses_[index];
      status.last = reader.get<Fingerprint>();
      status.busy = reader.get<std::uint8_t>() != 0;
      status.has_given_up = reader.get<std::uint8_t>() != 0;
      status.called = reader.get<std::uint64_t>();
      status.wait = reader.get<std::uint64_t>();
      status.other_wait.wait = reader.get<std::uint64_t>();
      status.other_wait.is_for_all = reader.get<std::uint8_t>() != 0;
      status.other_wait.meeting = reader.get<std::uint64_t>();
      status.other_wait.made = get_list(reader);
      status.other_wait.replaces_this = reader.get<std::uint8_t>() != 0;
      status.other_wait.awaited = get_list(reader);
      status.other_wait.what = reader.rest();
      break;
    }
    case Type::kInquire:
      if (members_.rank == 0) start_inquiry({origin, reader.get<std::uint64_t>()});
      break;
    case Type::kVerdict: {
      Verdict verdict;
      verdict.sequence = reader.get<std::uint64_t>();
      verdict.awaited = get_list(reader);
      verdict.text = reader.rest();
      hand_out(verdict);
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

void Control::inquire(std::uint64_t sequence, std::function<void(const Verdict&)> answer) {
  waiting_.emplace_back(sequence, std::move(answer));
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
  std::string question = start(Type::kPing, 0);
  put(question, ++number_);
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) ask(static_cast<int>(rank), question);
}

Control::Verdict Control::verdict(std::uint64_t sequence) const {
  std::vector<int> silent;
  std::vector<int> gone;
  std::string behind;
  std::vector<std::uint64_t> awaited;
  for (int rank = 0; rank < members_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (!answered_[index]) {
      (peers_[index].left ? gone : silent).push_back(rank);
    } else if (statuses_[index].last.sequence < sequence) {
      const Status& status = statuses_[index];
      std::string now = status.last.sequence == 0
                            ? "it has called no collective yet"
                            : (status.busy ? "it is in " : "its last one was ") + status.last.describe();
      if (!status.other_wait.what.empty()) now += ", and " + status.other_wait.what;
      const bool is_called = status.called >= sequence;
      behind += (behind.empty() ? "" : "; ") + members_.who(rank) + " has not " + (is_called ? "begun" : "called") +
                " it: " + now;
      if (is_called || status.other_wait.wait == 0) continue;
      awaited.push_back(status.other_wait.wait);
      awaited.insert(awaited.end(), status.other_wait.awaited.begin(), status.other_wait.awaited.end());
    }
  }
  std::string text;
  if (!silent.empty()) {
    text =
        join(members_, silent) + (silent.size() == 1 ? " does" : " do") + " not answer: stopped, or its machine hangs";
  }
  if (!gone.empty()) {
    text +=
        (text.empty() ? "" : "; ") + join(members_, gone) + (gone.size() == 1 ? " has" : " have") + " left the group";
  }
  if (!behind.empty()) text += (text.empty() ? "" : "; ") + behind;
  return {sequence, text, awaited};
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

std::pair<std::uint64_t, std::string> Control::mismatch() const {
  if (members_.hosts.size() == 1) return {};  // ranks that share memory compare themselves
  for (std::size_t second = 1; second < statuses_.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const Fingerprint& a = statuses_[first].last;
      const Fingerprint& b = statuses_[second].last;
      if (a.sequence != b.sequence || a.matches(b)) continue;
      if (statuses_[first].has_given_up || statuses_[second].has_given_up) continue;
      return {a.sequence,
              describe_mismatch(members_.who(static_cast<int>(first)), a, members_.who(static_cast<int>(second)), b)};
    }
  }
  return {};
}

// Whoever has not called what another one waits in, and waits elsewhere for that one, never comes.
std::string Control::deadlock() const {
  for (std::size_t away = 0; away < statuses_.size(); ++away) {
    const OtherWait& other_wait = statuses_[away].other_wait;
    if (other_wait.wait == 0) continue;
    for (std::size_t here = 0; here < statuses_.size(); ++here) {
      const Status& status = statuses_[here];
      if (statuses_[away].called >= status.last.sequence) continue;
      const bool is_awaited = other_wait.is_for_all || contains(other_wait.awaited, status.wait);
      if (!(status.wait != 0 && is_awaited) && !(status.busy && other_wait.replaces_this)) continue;
      return members_.who(static_cast<int>(here)) + " waits in " + status.last.describe() + " of group '" +
             members_.name + "', which " + members_.who(static_cast<int>(away)) +
             " has not called: " + other_wait.what +
             ". Neither can end before the other. All ranks must call the same operations and make "
             "the same training steps, in the same order.";
    }
  }
  return "";
}

std::string Control::separate_meetings() {
  // Who is silent may be what one of the two waits for.
  if (std::find(answered_.begin(), answered_.end(), false) != answered_.end()) return "";
  for (std::size_t second = 1; second < statuses_.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      const OtherWait& a = statuses_[first].other_wait;
      const OtherWait& b = statuses_[second].other_wait;
      if (a.wait == 0 || b.wait == 0 || !a.is_for_all || !b.is_for_all || a.meeting == b.meeting) continue;
      // Of a group that the one has made the other may still wait for a third rank.
      if (contains(a.made, b.meeting) || contains(b.made, a.meeting)) continue;
      const std::pair<std::uint64_t, std::uint64_t> waits{a.wait, b.wait};
      if (separate_ != waits) {
        separate_ = waits;
        separate_since_ = Clock::now();
      }
      if (Clock::now() - separate_since_ < kSeparate) return "";
      return members_.who(static_cast<int>(first)) + " waits for " + members_.who(static_cast<int>(second)) + ": " +
             a.what + "; and that one waits, too: " + b.what +
             ". Neither can end before the other. All ranks must make the same groups and models, in the same order.";
    }
  }
  separate_ = {};
  return "";
}

bool Control::poll() {
  if (Clock::now() < inquiry_ends_ &&
      (inquiries_.empty() || std::find(answered_.begin(), answered_.end(), false) != answered_.end())) {
    return false;
  }
  if (inquiries_.empty()) return false;
  inquiry_ends_ = Clock::time_point::max();
  if (const auto [sequence, text] = mismatch(); sequence != 0) {
    refuse(sequence, text);
    callbacks_.on_refused(sequence, text);
  } else if (const std::string cycle = deadlock(), apart = separate_meetings(); !cycle.empty() || !apart.empty()) {
    const Failure failure{ErrorKind::kMismatch, cycle.empty() ? apart : cycle, {}, true};
    abort(failure);
    callbacks_.on_abort(failure);
  }
  for (const Inquiry& inquiry : std::exchange(inquiries_, {})) {
    const Verdict found = verdict(inquiry.sequence);
    if (inquiry.from == 0) {
      hand_out(found);
    } else {
      std::string body = start(Type::kVerdict, 0);
      put(body, found.sequence);
      put_list(body, found.awaited);
      send(inquiry.from, body + found.text.substr(0, kMaxText));
    }
  }
  return true;
}

Clock::time_point Control::deadline() { return inquiry_ends_; }

}  // namespace smdp
