#include "collectives/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "common/failure.h"
#include "common/fork_guard.h"
#include "common/log.h"
#include "common/shortage.h"
#include "common/spin.h"
#include "observability/counters.h"
#include "smdp/call_name.h"
#include "smdp/error.h"
#include "transport/mail/ring_stream.h"
#include "transport/mail/socket_stream.h"

namespace smdp {
namespace {

// Once in a process, by rank 0, and not of a part of the world, where what is set for the world may not apply.
void warn_of_idle_algorithm(const Planner& planner, const Members& members) {
  static std::atomic<bool> is_told{false};
  if (members.rank != 0 || members.size == 1 || !members.world_ranks.empty()) return;
  const std::string reason = planner.why_idle(members.hosts.size());
  if (!reason.empty() && !is_told.exchange(true)) log(LogLevel::kWarning, reason);
}

std::vector<int> raw(const std::vector<Doorbell>& doorbells) {
  std::vector<int> numbers;
  for (const Doorbell& doorbell : doorbells) numbers.push_back(doorbell->get());
  return numbers;
}

}  // namespace

Engine::Engine(Connections connections, const GroupOptions& options)
    : progress_(connections.progress),
      connections_(std::move(connections)),
      members_(connections_.members),
      options_(options),
      planner_{parse_algorithm(options.algorithm), options.strict},
      board_(connections_.segment, members_, raw(connections_.doorbells)),
      links_(static_cast<std::size_t>(members_.size)),
      context_{members_, board_, links_},
      spins_(!members_.is_oversubscribed()),
      fork_generation_(ForkGuard::generation()) {
  note_caller(members_.world_rank(members_.rank));
  for (const auto& to_one : connections_.data) streams_ = std::max(streams_, to_one.size());
  warn_of_idle_algorithm(planner_, members_);
  const auto on_broken = [this](int rank, const std::string& reason) { this->on_broken(rank, reason); };
  const auto on_error = [this](std::exception_ptr error) { fail(std::move(error), Tell::kEveryone); };
  mailbox_ = std::make_unique<Mailbox>(members_, on_broken, on_error);
  control_ = std::make_unique<Control>(
      *progress_, members_, std::move(connections_.control),
      Control::Callbacks{[this](const Failure& failure) { on_abort(failure); },
                         [this](std::uint64_t sequence, const std::string& text) { on_refused(sequence, text); },
                         [this](int rank, const std::string& reason) { on_left(rank, reason); },
                         [this] { return status(); }});
  std::exception_ptr failure;
  try {
    progress_->run([this] { connect(); });
    return;
  } catch (const ShortageError& error) {
    failure = std::make_exception_ptr(ShortageError(members_.prefix() + without_tag(error.what())));
  } catch (...) {
    failure = std::current_exception();
  }
  fail(std::move(failure), Tell::kEveryone);
  shutdown("");
  std::rethrow_exception(error_);
}

void Engine::connect() {
  const auto on_broken = [this](int rank, const std::string& reason) { this->on_broken(rank, reason); };
  const auto on_error = [this](std::exception_ptr error) { fail(std::move(error), Tell::kEveryone); };
  const auto on_mismatch = [this](std::uint64_t sequence, std::exception_ptr error) {
    this->on_mismatch(sequence, std::move(error));
  };
  std::vector<std::unique_ptr<ByteStream>> streams(static_cast<std::size_t>(members_.size));
  for (int rank = 0; rank < members_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank == members_.rank) continue;
    if (members_.host_of(rank) == members_.host_index) {
      const std::size_t local = members_.local_index_of(rank);
      streams[index] = std::make_unique<RingStream>(connections_.segment, members_.local_index, local,
                                                    connections_.doorbells[local]->get());
      continue;
    }
    streams[index] = std::make_unique<SocketStream>(*progress_, std::move(connections_.mail[index]), [] {});
    links_[index] = std::make_unique<Link>(*progress_, members_, rank, std::move(connections_.data[index]), on_broken,
                                           on_mismatch, on_error);
  }
  mailbox_->open(std::move(streams));
  control_->open();
  progress_->add(this);
}

Engine::~Engine() { shutdown(""); }

std::exception_ptr Engine::inherited_error() const {
  if (!ForkGuard::in_forked_child(fork_generation_)) return nullptr;
  return std::make_exception_ptr(
      ClosedError("[smdp] this process is a forked child of rank " +
                  std::to_string(members_.world_rank(members_.rank)) + " and cannot use its group '" + members_.name +
                  "'. Communicate in the parent, or start the child with spawn and its own smdp.init()."));
}

void Engine::check_usable() const {
  if (const std::exception_ptr inherited = inherited_error()) std::rethrow_exception(inherited);
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

Group::Handle Engine::collective(Fingerprint fingerprint, std::size_t bytes, Body body, const Call& call,
                                 std::function<bool()> is_open) {
  if (const std::exception_ptr inherited = inherited_error()) std::rethrow_exception(inherited);
  if (call.arrival) call.arrival->wake_by([progress = progress_] { progress->wake(); });
  auto collective = std::make_unique<Collective>();
  collective->fingerprint = fingerprint;
  collective->fingerprint.set_name(call.name.empty() ? call_name() : call.name);
  const bool is_by_name = call.by_name && members_.size > 1;
  if (call.by_name && collective->fingerprint.name == 0) {
    throw InvalidArgument(members_.prefix() + name_of(fingerprint.kind) + " by name has no name.");
  }
  collective->bytes = bytes;
  collective->label = call.label;
  collective->is_counted = call.is_counted;
  collective->is_open = std::move(is_open);
  collective->arrival = call.arrival;
  collective->was_open = collective->arrival || collective->is_open;
  collective->body = std::move(body);
  collective->timeout = call.timeout.value_or(options_.timeout);
  const Group::Handle handle = collective->handle;
  std::unique_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  // It would wait for what this very thread has to end first, at once or in its handle's wait().
  if (driver_ == Driver::kCaller && caller_ == std::this_thread::get_id()) {
    throw Error(members_.prefix() + "a signal handler called " + name_of(fingerprint.kind) + " while " +
                last_.describe() +
                " is under way in the same thread, which it would wait for. Let the handler note the signal, and make "
                "the call after the step, on all ranks.");
  }
  if (last_caller_ != this_thread()) {
    last_caller_ = this_thread();
    note_caller(members_.world_rank(members_.rank));
  }
  if (!is_by_name && !call.async && !call.arrival && members_.hosts.size() == 1 && driver_ == Driver::kNone &&
      queue_.empty()) {
    driver_ = Driver::kCaller;
    caller_ = std::this_thread::get_id();
    begin(*collective);
    lock.unlock();
    drive_inline(*collective, call);
    const std::exception_ptr failure = error_of(*collective);
    if (failure) end_failed(*collective, failure);
    const Clock::time_point end = record(*collective);
    lock.lock();
    driver_ = Driver::kNone;
    running_ = nullptr;
    last_end_ = end;
    const bool more = !queue_.empty();
    const bool stopping = error_ != nullptr;
    lock.unlock();
    if (stopping) idle_.notify_all();
    if (more) progress_->wake();
    if (failure) std::rethrow_exception(failure);
    return nullptr;
  }
  const auto now = Clock::now();
  collective->deadline = now + collective->timeout;
  if (is_by_name) {  // it may be set aside, and is looked at meanwhile
    collective->since = now;
    set_looks(*collective);
  }
  collective->next_inquiry = inquiry_time(collective->deadline, collective->timeout);  // those before it ask earlier
  if (is_by_name) {
    if (const std::exception_ptr refused = queue_by_name(std::move(collective))) {
      lock.unlock();
      fail(refused, Tell::kEveryone);
      std::rethrow_exception(refused);
    }
  } else {
    queue_.push_back(std::move(collective));
  }
  lock.unlock();
  progress_->wake();
  if (call.async) return handle;
  wait(*handle, call);
  return nullptr;
}

void Engine::wait(Operation& operation, const Call& call) {
  if (call.interrupted && !operation.wait_unless(call.interrupted)) fail(interruption(), Tell::kEveryone);
  operation.wait();
}

// Under mutex_.
void Engine::begin(Collective& collective) {
  collective.fingerprint.sequence = last_.sequence + 1;
  last_ = collective.fingerprint;
  is_given_up_ = false;
  running_ = is_patient(collective) ? collective.handle.get() : nullptr;
  if (driver_ == Driver::kProgress) collective.handle->begin();  // else nobody else has the handle
  collective.began = collective.since = Clock::now();
  collective.deadline = collective.since + collective.timeout;  // those before it have taken their own time
  set_looks(collective);
}

Task Engine::run(Collective& collective) {
  if (board_.is_in_doubt()) {
    for (std::size_t local = 0; local < board_.size(); ++local) {
      if (local != board_.me()) co_await board_.gave_up(local);
    }
    board_.agree_on_rounds();
  }
  board_.enter(collective.fingerprint);
  for (const auto& link : links_) {
    if (link) link->enter(collective.fingerprint);
  }
  if (const auto refused = refused_.find(collective.fingerprint.sequence); refused != refused_.end()) {
    const std::string what = collective.describe() + " failed: ";
    throw MismatchError(members_.prefix() + what + refused->second);
  }
  if (collective.arrival) {
    co_await until(-1, [&collective] { return collective.arrival->is_there(); });
    collective.began = Clock::now();  // before, it was the device's time
  }
  context_.algorithm = "";
  Task body = collective.body(context_);
  co_await body;
  // A root that only gives has waited for nobody; it is told of a mismatch all the same.
  for (std::size_t local = 0; local < board_.size(); ++local) {
    if (local != board_.me()) co_await board_.met(local);
  }
}

void Engine::drive_inline(Collective& collective, const Call& call) {
  Scheduler& scheduler = collective.scheduler;
  std::atomic<std::uint32_t>& sleep = board_.my_sleep();
  std::optional<WaitScope> scope;
  collective.root = run(collective);
  collective.root.start(scheduler);
  while (!collective.root.done()) {
    if (scheduler.poll()) continue;
    if (spins_ && spin([&scheduler] { return scheduler.poll(); })) continue;
    sleep.store(kInFutex);
    if (!scheduler.poll()) {
      if (!check(collective)) {
        const Clock::duration most = scope ? Clock::duration(std::chrono::seconds(1)) : kShortWait;
        const auto left =
            std::clamp<Clock::duration>(collective.next_look() - Clock::now(), std::chrono::milliseconds(1), most);
        futex_sleep(sleep, left);
        if (call.interrupted && call.interrupted()) scheduler.fail(interruption());
        if (!scope && Clock::now() - collective.began >= kShortWait) scope.emplace(*collective.handle);
      }
    }
    sleep.store(kAwake);
  }
}

std::string Engine::Collective::describe() const {
  return fingerprint.describe() + (label ? " (" + label() + ")" : "");
}

int Engine::Collective::awaited() const {
  int peer = -1;
  for (const Scheduler::Wait& wait : scheduler.waits()) peer = std::max(peer, wait.peer);
  return peer;
}

Clock::time_point Engine::record(const Collective& collective) const {
  const Clock::time_point now = Clock::now();
  const char* kind = name_of(collective.fingerprint.kind);
  if (collective.is_counted) {
    const double seconds = std::chrono::duration<double>(now - collective.began).count();
    count_operation(kind, context_.algorithm, collective.bytes, seconds);
  }
  if (!trace::is_on()) return now;
  trace::span("group " + members_.name, collective.is_counted ? "operation" : "calibration", kind, collective.began,
              now,
              {{"sequence", std::to_string(collective.fingerprint.sequence)},
               {"group", trace::quoted(members_.name)},
               {"bytes", std::to_string(collective.bytes)},
               {"algorithm", trace::quoted(context_.algorithm)},
               {"what", trace::quoted(collective.describe())}});
  return now;
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
    if (!moved && check(collective)) {
      collective.scheduler.poll();
      moved = true;
    }
  }
  const std::exception_ptr failure = error_of(collective);
  if (failure) {
    // A part of it that has thrown has taken its buffers along, and no stream may write into them.
    const bool goes_on = is_for_all(collective, failure);
    for (const auto& link : links_) {
      if (!link) continue;
      goes_on ? link->drop(collective.fingerprint.sequence) : link->abandon();
    }
  }
  if (!collective.root.done()) return moved;
  if (failure) end_failed(collective, failure);
  const std::unique_ptr<Collective> ended = std::move(active_);
  const Clock::time_point end = record(*ended);  // before a caller may drive the next, which shares the context
  {
    const std::lock_guard lock(mutex_);
    driver_ = Driver::kNone;
    running_ = nullptr;
    last_end_ = end;
    if (!failure) end_by_name(*ended);  // else the group is closed, if it was called by name
  }
  ended->handle->complete(failure);
  return true;
}

bool Engine::poll() {
  bool moved = poll_collective();
  moved |= mailbox_->poll();
  const auto now = Clock::now();
  check_queue(now);
  if (stop_.load()) check_departed_aside();
  check_mail(now);
  if (!suspects_.empty()) check_suspects(now);
  return moved;
}

bool Engine::spins() { return spins_ && active_ && members_.hosts.size() == 1 && active_->handle->is_urgent(); }

void Engine::arm() {
  if (members_.local_ranks().size() == 1) return;
  if (active_) board_.my_sleep().store(kInEpoll);
  connections_.segment->flags(members_.local_index).mail_sleep.store(kInEpoll);
}

Clock::time_point Engine::deadline() {
  Clock::time_point first = Clock::time_point::max();
  if (active_) first = active_->next_look();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& queued : queue_) first = std::min({first, queued->next_inquiry, queued->deadline});
    for (const auto& [name, aside] : aside_) {
      first = std::min({first, aside->next_inquiry, aside->deadline});
      if (announced_.name != 0) first = std::min(first, aside->next_stall);
    }
  }
  const Clock::time_point mail = mailbox_->deadline();
  if (mail != Clock::time_point::max()) {
    first = std::min(first, mail_inquired_ ? mail : mail - Control::kInquiry - std::chrono::milliseconds(300));
  }
  for (const auto& [rank, suspect] : suspects_) first = std::min(first, suspect.first);
  return first;
}

void Engine::wake_caller() { ring_doorbell(board_.my_sleep(), progress_->doorbell().get()); }

}  // namespace smdp
