#include "collectives/engine.h"

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/fork_guard.h"
#include "smdp/error.h"
#include "transport/mail/ring_stream.h"
#include "transport/mail/socket_stream.h"

namespace smdp {
namespace {

// A blocked caller spins this long before it sleeps: a few times the cost of a wake-up.
constexpr std::chrono::microseconds kSpin{50};
// Between a broken data stream and blaming its peer: the control plane knows better, and may need its keepalive.
constexpr std::chrono::milliseconds kSuspicion{4500};
// How often a blocked caller looks whether it is interrupted.
constexpr std::chrono::milliseconds kInterruptionCheck{200};

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// When to ask who is late, so that the answer is there at the deadline.
Clock::time_point inquiry_time(Clock::time_point deadline, std::chrono::milliseconds timeout) {
  return deadline -
         std::min<std::chrono::milliseconds>(Control::kInquiry + std::chrono::milliseconds(300), timeout / 2);
}

std::exception_ptr make_error(ErrorKind kind, const std::string& text, const std::vector<int>& lost) {
  switch (kind) {
    case ErrorKind::kTimeout:
      return std::make_exception_ptr(TimeoutError(text));
    case ErrorKind::kPeerLost:
      return std::make_exception_ptr(PeerLostError(text, lost));
    case ErrorKind::kMismatch:
      return std::make_exception_ptr(MismatchError(text));
    case ErrorKind::kConfig:
      return std::make_exception_ptr(ConfigError(text));
    case ErrorKind::kClosed:
      return std::make_exception_ptr(ClosedError(text));
    case ErrorKind::kInternal:
      break;
  }
  return std::make_exception_ptr(Error(text));
}

struct Explained {
  ErrorKind kind = ErrorKind::kInternal;
  std::string text;
  std::vector<int> lost;
};

Explained explain(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& e) {
    return {e.kind(), e.what(), e.ranks()};
  } catch (const Error& e) {
    return {e.kind(), e.what(), {}};
  } catch (const std::exception& e) {
    return {ErrorKind::kInternal, e.what(), {}};
  }
}

std::string seconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(static_cast<double>(time.count()) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string without_tag(const std::string& text) {
  const std::string tag = "[smdp] ";
  return text.rfind(tag, 0) == 0 ? text.substr(tag.size()) : text;
}

std::vector<int> raw(const std::vector<FileDescriptor>& descriptors) {
  std::vector<int> numbers;
  for (const FileDescriptor& descriptor : descriptors) numbers.push_back(descriptor.get());
  return numbers;
}

}  // namespace

Engine::Engine(std::shared_ptr<Progress> progress, Connections connections, const GroupOptions& options)
    : progress_(std::move(progress)),
      connections_(std::move(connections)),
      members_(connections_.members),
      options_(options),
      planner_{parse_algorithm(options.algorithm), options.strict},
      board_(connections_.segment, members_, raw(connections_.eventfds)),
      links_(static_cast<std::size_t>(members_.size)),
      context_{members_, board_, links_},
      spins_(!members_.is_oversubscribed()),
      fork_generation_(ForkGuard::generation()) {
  const auto on_broken = [this](int rank, const std::string& reason) { this->on_broken(rank, reason); };
  const auto on_error = [this](std::exception_ptr error) {
    const Explained what = explain(error);
    fail(error, what.kind, what.text, what.lost, true);
  };
  mailbox_ = std::make_unique<Mailbox>(members_, on_broken, on_error);
  control_ = std::make_unique<Control>(
      *progress_, members_, std::move(connections_.control),
      Control::Callbacks{
          [this](ErrorKind kind, const std::string& text, const std::vector<int>& lost) { on_abort(kind, text, lost); },
          [this](int rank, const std::string& reason) { on_left(rank, reason); }, [this] { return status(); }});
  progress_->run([&] {
    std::vector<std::unique_ptr<ByteStream>> streams(static_cast<std::size_t>(members_.size));
    for (int rank = 0; rank < members_.size; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      if (rank == members_.rank) continue;
      if (members_.host_of(rank) == members_.host_index) {
        const std::size_t local = members_.local_index_of(rank);
        streams[index] = std::make_unique<RingStream>(connections_.segment, members_.local_index, local,
                                                      connections_.eventfds[local].get());
        continue;
      }
      streams[index] = std::make_unique<SocketStream>(*progress_, std::move(connections_.mail[index]), [] {});
      links_[index] = std::make_unique<Link>(
          *progress_, rank, std::move(connections_.data[index]), on_broken,
          [this](const Fingerprint& own, const Fingerprint& theirs, int peer) {
            return std::make_exception_ptr(MismatchError(
                members_.prefix() + "called " + own.describe() + ", but " + members_.who(peer) + " called " +
                theirs.describe() +
                ". All ranks of a group must call the same operations in the same order, with the same shapes, "
                "dtypes and roots."));
          },
          on_error);
    }
    mailbox_->open(std::move(streams));
    const int doorbell = connections_.eventfds[members_.local_index].get();
    progress_->add(doorbell, EPOLLIN, [doorbell](std::uint32_t) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(doorbell, &count, sizeof count);
    });
    progress_->add(this);
  });
}

Engine::~Engine() { shutdown(""); }

void Engine::check_usable() const {
  if (ForkGuard::in_forked_child(fork_generation_)) {
    throw ClosedError("[smdp] this process is a forked child of rank " + std::to_string(members_.rank) +
                      " and cannot use its group '" + members_.name +
                      "'. Communicate in the parent, or start the child with spawn and its own smdp.init().");
  }
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

Group::Handle Engine::collective(Fingerprint fingerprint, Body body, const Call& call) {
  check_usable();
  auto collective = std::make_unique<Collective>();
  collective->fingerprint = fingerprint;
  collective->body = std::move(body);
  collective->timeout = call.timeout.value_or(options_.timeout);
  collective->deadline = Clock::now() + collective->timeout;
  const Group::Handle handle = collective->handle;
  std::unique_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  if (!call.async && members_.hosts.size() == 1 && driver_ == Driver::kNone && queue_.empty()) {
    driver_ = Driver::kCaller;
    begin(*collective);
    lock.unlock();
    drive_inline(*collective, call);
    const std::exception_ptr failure = collective->scheduler.error();
    if (failure) {
      const Explained what = explain(failure);
      fail(failure, what.kind, what.text, what.lost, true);
    }
    lock.lock();
    driver_ = Driver::kNone;
    const bool more = !queue_.empty();
    const bool stopping = error_ != nullptr;
    lock.unlock();
    if (stopping) idle_.notify_all();
    if (more) progress_->wake();
    if (failure) std::rethrow_exception(failure);
    return nullptr;
  }
  queue_.push_back(std::move(collective));
  lock.unlock();
  progress_->wake();
  if (call.async) return handle;
  wait(*handle, call);
  return nullptr;
}

std::exception_ptr Engine::interruption() const {
  const std::lock_guard lock(mutex_);
  return make_error(ErrorKind::kClosed,
                    members_.prefix() + "interrupted" + (current_.empty() ? "" : " in " + current_) + ".", {});
}

void Engine::wait(Operation& operation, const Call& call) {
  while (call.interrupted) {
    try {
      operation.wait(kInterruptionCheck);
      return;
    } catch (const TimeoutError&) {
      if (operation.done()) throw;
    }
    if (call.interrupted()) {
      const std::exception_ptr error = interruption();
      const Explained what = explain(error);
      fail(error, what.kind, what.text, what.lost, true);
      break;
    }
  }
  operation.wait();
}

// Under mutex_.
void Engine::begin(Collective& collective) {
  collective.fingerprint.sequence = ++sequence_;
  current_ = collective.fingerprint.describe();
}

Task Engine::run(Collective& collective) {
  const std::uint64_t sequence = collective.fingerprint.sequence;
  std::size_t laggard = 0;
  if (!board_.can_enter(sequence, laggard)) {
    co_await until(board_.rank_of(laggard), [this, sequence, &laggard] { return board_.can_enter(sequence, laggard); });
  }
  board_.enter(collective.fingerprint);
  for (const auto& link : links_) {
    if (link) link->enter(collective.fingerprint);
  }
  Task body = collective.body(context_);
  co_await body;
}

void Engine::drive_inline(Collective& collective, const Call& call) {
  Scheduler& scheduler = collective.scheduler;
  std::atomic<std::uint32_t>& sleep = board_.my_sleep();
  collective.root = run(collective);
  collective.root.start(scheduler);
  while (!collective.root.done()) {
    if (scheduler.poll()) continue;
    bool moved = false;
    if (spins_) {
      const auto limit = Clock::now() + kSpin;
      while (!moved && Clock::now() < limit) {
        for (int i = 0; i < 16 && !moved; ++i) {
          pause_cpu();
          moved = scheduler.poll();
        }
      }
    }
    if (moved) continue;
    sleep.store(kInFutex);
    if (!scheduler.poll()) {
      check(collective);
      if (!collective.scheduler.error()) {
        const auto next =
            collective.inquired ? collective.deadline : inquiry_time(collective.deadline, collective.timeout);
        const auto left =
            std::clamp<Clock::duration>(next - Clock::now(), std::chrono::milliseconds(1), std::chrono::seconds(1));
        futex_sleep(sleep, left);
        if (call.interrupted && call.interrupted()) scheduler.fail(interruption());
      }
    }
    sleep.store(kAwake);
  }
}

void Engine::check(Collective& collective) {
  if (stop_.load()) {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
    }
    if (error) {
      collective.scheduler.fail(error);
      return;
    }
    check_departed(collective);
  }
  const auto now = Clock::now();
  if (!collective.inquired && now >= inquiry_time(collective.deadline, collective.timeout)) {
    collective.inquired = true;
    inquire(collective.fingerprint.sequence);
  }
  if (now < collective.deadline) return;
  int peer = -1;
  for (const Scheduler::Wait& wait : collective.scheduler.waits()) peer = std::max(peer, wait.peer);
  collective.scheduler.fail(
      std::make_exception_ptr(TimeoutError(members_.prefix() + collective.fingerprint.describe() + " timed out after " +
                                           seconds(collective.timeout) + ": " + verdict_for(peer) + ".")));
}

// On this host, a rank that has left published all it ever will before it said so: what is not there now never comes.
// What a rank on another host sent may still be on its way, until its streams have ended.
void Engine::check_departed(Collective& collective) {
  if (collective.scheduler.poll()) return;
  for (const Scheduler::Wait& wait : collective.scheduler.waits()) {
    if (wait.peer < 0 || may_still_send(wait.peer)) continue;
    {
      const std::lock_guard lock(mutex_);
      const auto found = left_.find(wait.peer);
      if (found == left_.end()) continue;
    }
    collective.scheduler.fail(
        std::make_exception_ptr(PeerLostError(members_.prefix() + collective.fingerprint.describe() +
                                                  " cannot finish: " + members_.who(wait.peer) + left_reason(wait.peer),
                                              {wait.peer})));
    return;
  }
}

bool Engine::may_still_send(int rank) const {
  const auto& link = links_[static_cast<std::size_t>(rank)];
  return link && !link->is_broken();
}

std::string Engine::left_reason(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = left_.find(rank);
  if (found == left_.end() || found->second.empty()) {
    return " has left the group: its program ended, or called shutdown().";
  }
  return " has left the group: " + found->second;
}

bool Engine::poll_collective() {
  if (!active_) {
    const std::lock_guard lock(mutex_);
    if (driver_ != Driver::kNone || queue_.empty() || error_) return false;
    active_ = std::move(queue_.front());
    queue_.pop_front();
    driver_ = Driver::kProgress;
    begin(*active_);
  }
  Collective& collective = *active_;
  bool moved = false;
  if (!collective.root.handle()) {
    collective.root = run(collective);
    collective.root.start(collective.scheduler);
    moved = true;
  } else {
    moved = collective.scheduler.poll();
    if (!moved) {
      check(collective);
      if (collective.scheduler.error()) moved = collective.scheduler.poll();
    }
  }
  if (!collective.root.done()) return moved;
  const std::exception_ptr failure = collective.scheduler.error();
  if (failure) {
    const Explained what = explain(failure);
    fail(failure, what.kind, what.text, what.lost, true);
  }
  const std::unique_ptr<Collective> ended = std::move(active_);
  {
    const std::lock_guard lock(mutex_);
    driver_ = Driver::kNone;
  }
  ended->handle->complete(failure);
  return true;
}

bool Engine::poll() {
  bool moved = poll_collective();
  moved |= mailbox_->poll();
  const auto now = Clock::now();
  check_mail(now);
  if (!suspects_.empty()) check_suspects(now);
  return moved;
}

void Engine::arm() {
  if (members_.local_ranks().size() == 1) return;
  if (active_) board_.my_sleep().store(kInEpoll);
  connections_.segment->flags(members_.local_index).mail_sleep.store(kInEpoll);
}

Clock::time_point Engine::deadline() {
  Clock::time_point first = Clock::time_point::max();
  if (active_) {
    first = active_->inquired ? active_->deadline : inquiry_time(active_->deadline, active_->timeout);
  }
  const Clock::time_point mail = mailbox_->deadline();
  if (mail != Clock::time_point::max()) {
    first = std::min(first, mail_inquired_ ? mail : mail - Control::kInquiry - std::chrono::milliseconds(300));
  }
  for (const auto& [rank, suspect] : suspects_) first = std::min(first, suspect.first);
  return first;
}

void Engine::check_mail(Clock::time_point now) {
  if (stop_.load()) {
    std::vector<int> left;
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      for (const auto& [rank, reason] : left_) left.push_back(rank);
    }
    for (const int rank : left) {
      const bool is_remote = members_.host_of(rank) != members_.host_index;
      if (is_remote && mailbox_->is_open(rank)) continue;  // its messages may still be on their way
      const Mailbox::Request* request = mailbox_->waiting_for(rank);
      if (request == nullptr) continue;
      const std::string text = members_.prefix() + "a message with tag " + std::to_string(request->tag) +
                               " cannot be exchanged: " + members_.who(rank) + left_reason(rank);
      fail(std::make_exception_ptr(PeerLostError(text, {rank})), ErrorKind::kPeerLost, text, {rank}, true);
      return;
    }
  }
  const Clock::time_point first = mailbox_->deadline();
  if (first == Clock::time_point::max()) {
    mail_inquired_ = false;
    return;
  }
  if (!mail_inquired_ && now >= first - Control::kInquiry - std::chrono::milliseconds(300)) {
    mail_inquired_ = true;
    inquire(0);
  }
  const Mailbox::Request* request = mailbox_->overdue(now);
  if (request == nullptr) return;
  const std::string whom = request->peer < 0 ? "any rank" : members_.who(request->peer);
  const std::string text = members_.prefix() + "a message with tag " + std::to_string(request->tag) + " from or to " +
                           whom + " timed out after " + seconds(request->timeout) + ": " + verdict_for(request->peer) +
                           ".";
  fail(std::make_exception_ptr(TimeoutError(text)), ErrorKind::kTimeout, text, {}, true);
}

void Engine::check_suspects(Clock::time_point now) {
  for (auto it = suspects_.begin(); it != suspects_.end(); ++it) {
    if (it->second.first > now) continue;
    const int rank = it->first;
    const std::string text = members_.prefix() + "lost the connection to " + members_.who(rank) + ": " +
                             it->second.second + ". " + in_flight();
    suspects_.erase(it);
    fail(std::make_exception_ptr(PeerLostError(text, {rank})), ErrorKind::kPeerLost, text, {rank}, true);
    return;
  }
}

Group::Handle Engine::mail(Mailbox::Request request, const Call& call, bool is_send) {
  check_usable();
  request.operation = std::make_shared<Operation>();
  request.timeout = call.timeout.value_or(options_.timeout);
  request.deadline = Clock::now() + request.timeout;
  const Group::Handle handle = request.operation;
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_), request = std::move(request), is_send] {
    if (alive.expired()) {
      request.operation->complete(std::make_exception_ptr(ClosedError("[smdp] the group was shut down.")));
      return;
    }
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
    }
    if (error) {
      request.operation->complete(error);
    } else if (is_send) {
      mailbox_->send(request);
    } else {
      mailbox_->receive(request);
    }
  });
  if (!call.async) wait(*handle, call);
  return handle;
}

Group::Handle Engine::send(Mailbox::Request request, const Call& call) { return mail(std::move(request), call, true); }

Group::Handle Engine::receive(Mailbox::Request request, const Call& call) {
  return mail(std::move(request), call, false);
}

std::string Engine::in_flight() const {
  const std::lock_guard lock(mutex_);
  if (current_.empty()) return "No operation was in flight.";
  return (driver_ == Driver::kNone ? "Idle; the last operation was " : "In ") + current_ + ".";
}

Control::Status Engine::status() const {
  const std::lock_guard lock(mutex_);
  return {sequence_, driver_ != Driver::kNone, current_};
}

void Engine::inquire(std::uint64_t sequence) {
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_), sequence] {
    if (alive.expired() || !control_) return;
    control_->inquire(sequence, [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      verdict_ = text;
      has_verdict_ = true;
    });
  });
}

std::string Engine::verdict_for(int peer) const {
  const std::lock_guard lock(mutex_);
  if (!has_verdict_ && members_.rank != 0) return members_.who(0) + " does not answer: stopped, or its machine hangs";
  if (!verdict_.empty()) return verdict_;
  if (peer >= 0) return "waiting for " + members_.who(peer) + ", which answers, but has not sent its part";
  return "all ranks answer";
}

void Engine::wake_caller() { ring_doorbell(board_.my_sleep(), connections_.eventfds[members_.local_index].get()); }

void Engine::fail(std::exception_ptr error, ErrorKind kind, const std::string& text, const std::vector<int>& lost,
                  bool tell_others) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    stop_.store(true);
  }
  wake_caller();
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_), kind, text, lost, tell_others] {
    if (alive.expired() || !control_) return;
    if (tell_others) control_->abort(kind, text, lost);
    fail_everything();
  });
}

void Engine::fail_everything() {
  std::exception_ptr error;
  std::deque<std::unique_ptr<Collective>> queued;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
    queued.swap(queue_);
  }
  for (const auto& link : links_) {
    if (link) link->reset();  // before any coroutine frame goes: nothing may write into its buffers
  }
  mailbox_->fail(error);
  if (active_) {
    active_->scheduler.fail(error);
    poll_collective();
  }
  for (const auto& collective : queued) collective->handle->complete(error);
}

void Engine::on_abort(ErrorKind kind, const std::string& text, const std::vector<int>& lost) {
  std::string full = members_.prefix();
  {
    const std::lock_guard lock(mutex_);
    full += driver_ == Driver::kNone ? "" : current_ + " failed: ";
  }
  full += without_tag(text);
  fail(make_error(kind, full, lost), kind, full, lost, false);
}

void Engine::on_left(int rank, const std::string& reason) {
  suspects_.erase(rank);
  {
    const std::lock_guard lock(mutex_);
    std::string& known = left_[rank];
    if (!reason.empty()) known = reason;
    stop_.store(true);
  }
  wake_caller();
}

void Engine::on_broken(int rank, const std::string& reason) {
  bool expected = false;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    expected = left_.count(rank) != 0 || left_.count(0) != 0;
  }
  if (!expected) {
    suspects_.try_emplace(rank, Clock::now() + kSuspicion, reason);
  } else if (rank != 0) {
    on_left(rank, "");  // rank 0 is gone, so nobody relays goodbyes any more
  }
}

void Engine::abort(const std::string& reason) {
  const std::string text = members_.prefix() + "aborted: " + reason;
  fail(make_error(ErrorKind::kClosed, text, {}), ErrorKind::kClosed, text, {}, true);
}

void Engine::shutdown(const std::string& reason) {
  if (ForkGuard::in_forked_child(fork_generation_)) return;
  {
    std::unique_lock lock(mutex_);
    if (removed_) return;
    removed_ = true;
    if (!error_) {
      error_ = make_error(ErrorKind::kClosed, members_.prefix() + "group '" + members_.name + "' was shut down.", {});
    }
    stop_.store(true);
  }
  wake_caller();
  progress_->run([&] {
    fail_everything();
    control_->leave(reason);
    control_.reset();
    links_.clear();
    links_.resize(static_cast<std::size_t>(members_.size));
    progress_->remove(connections_.eventfds[members_.local_index].get());
    progress_->remove(this);
    alive_token_.reset();
  });
  // A caller that drives sees the error and ends; its buffers and the board must outlive it.
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return driver_ != Driver::kCaller; });
}

std::exception_ptr Engine::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace smdp
