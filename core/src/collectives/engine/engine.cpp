#include "collectives/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "common/failure.h"
#include "common/log.h"
#include "common/shortage.h"
#include "common/spin.h"
#include "observability/counters.h"
#include "smdp/call_name.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// Warns once per process, on rank 0. Not for parts of the world, because a setting for the world may not apply there.
void warn_of_idle_algorithm(const Planner& planner, const Members& members) {
  static std::atomic<bool> is_told{false};
  if (members.rank != 0 || members.size == 1 || !members.world_ranks.empty()) return;
  const std::string reason = planner.why_idle(members.hosts.size());
  if (!reason.empty() && !is_told.exchange(true)) log(LogLevel::kWarning, reason);
}

}  // namespace

Engine::Engine(Connections connections, const GroupOptions& options)
    : progress_(connections.progress),
      connections_(std::move(connections)),
      members_(connections_.members),
      options_(options),
      planner_{parse_algorithm(options.algorithm), options.strict},
      board_(connections_.transport->board()),
      links_(static_cast<std::size_t>(members_.size)),
      context_{members_, board_, links_},
      thread_(progress_),
      failures_(members_, {[this] { wake_caller(); },
                           [this] {
                             thread_.post([this] {
                               tell_failure();
                               fail_everything();
                             });
                           },
                           [this] { return queue_.in_flight(); }}),
      queue_(members_, options_, failures_),
      diagnosis_(members_, options_.stall_time, queue_, failures_, thread_,
                 [this](std::uint64_t sequence, std::function<void(const Control::Verdict&)> answer) {
                   control_->inquire(sequence, std::move(answer));
                 }),
      mail_(members_, options_.timeout, failures_, diagnosis_, thread_),
      spins_(!members_.is_oversubscribed()) {
  note_caller(members_.world_rank(members_.rank));
  warn_of_idle_algorithm(planner_, members_);
  control_ = std::make_unique<Control>(
      *progress_, members_, std::move(connections_.control),
      Control::Callbacks{[this](const Failure& failure) { on_abort(failure); },
                         [this](std::uint64_t sequence, const std::string& text) { on_refused(sequence, text); },
                         [this](int rank, const std::string& reason) { failures_.on_left(rank, reason); },
                         [this] { return diagnosis_.status(); }});
  std::exception_ptr failure;
  try {
    progress_->run([this] { connect(); });
    return;
  } catch (const ShortageError& error) {
    failure = std::make_exception_ptr(ShortageError(members_.prefix() + without_tag(error.what())));
  } catch (...) {
    failure = std::current_exception();
  }
  failures_.fail(std::move(failure), Tell::kEveryone);
  shutdown("");
  failures_.check_usable();
}

void Engine::connect() {
  const auto on_broken = [this](int rank, const std::string& reason) { failures_.on_broken(rank, reason); };
  const auto on_error = [this](std::exception_ptr error) { failures_.fail(std::move(error), Tell::kEveryone); };
  const auto on_mismatch = [this](std::uint64_t sequence, std::exception_ptr error) {
    this->on_mismatch(sequence, std::move(error));
  };
  Transport& transport = *connections_.transport;
  std::vector<std::unique_ptr<ByteStream>> streams(static_cast<std::size_t>(members_.size));
  for (int rank = 0; rank < members_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank == members_.rank) continue;
    streams[index] = transport.open_stream(rank);
    if (members_.host_of(rank) == members_.host_index) continue;
    links_[index] = transport.open_link(rank, {on_broken, on_mismatch, on_error});
  }
  mail_.open(std::move(streams));
  control_->open();
  progress_->add(this);
}

Engine::~Engine() { shutdown(""); }

Group::Handle Engine::collective(Fingerprint fingerprint, std::size_t bytes, Body body, const Call& call,
                                 std::function<bool()> is_open) {
  if (const std::exception_ptr inherited = failures_.inherited_error()) std::rethrow_exception(inherited);
  if (call.arrival) call.arrival->wake_by([progress = progress_] { progress->wake(); });
  auto collective = std::make_unique<Collective>();
  collective->fingerprint = fingerprint;
  collective->fingerprint.set_name(call.name.empty() ? call_name() : call.name);
  collective->is_by_name = call.by_name && members_.size > 1;
  if (call.by_name && collective->fingerprint.name == 0) {
    throw InvalidArgument(members_.prefix() + name_of(fingerprint.kind) +
                          " was called by name, but without a name. Set Call::name.");
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
  const bool must_queue = collective->is_by_name || call.async || call.arrival || members_.hosts.size() > 1;
  try {
    collective = queue_.enter(std::move(collective), must_queue);
  } catch (const MismatchError&) {
    failures_.fail(std::current_exception(), Tell::kEveryone);  // two calls with one name: other ranks may wait for
                                                                // both
    throw;
  }
  if (collective) {
    drive_inline(*collective, call);
    const std::exception_ptr failure = error_of(*collective);
    if (failure) end_failed(*collective, failure);
    if (queue_.leave(record(*collective))) progress_->wake();
    if (failure) std::rethrow_exception(failure);
    return nullptr;
  }
  progress_->wake();
  if (call.async) return handle;
  wait(*handle, call);
  return nullptr;
}

Group::Handle Engine::send(Mailbox::Request request, const Call& call) {
  const Group::Handle handle = mail_.send(std::move(request), call);
  if (!call.async) wait(*handle, call);
  return handle;
}

Group::Handle Engine::receive(Mailbox::Request request, const Call& call) {
  const Group::Handle handle = mail_.receive(std::move(request), call);
  if (!call.async) wait(*handle, call);
  return handle;
}

void Engine::wait(Operation& operation, const Call& call) {
  if (call.interrupted && !operation.wait_unless(call.interrupted)) failures_.fail(interruption(), Tell::kEveryone);
  operation.wait();
}

std::exception_ptr Engine::interruption() const {
  const Fingerprint last = queue_.last();
  const std::string where = last.kind == OpKind::kNone ? "" : " in " + last.describe();
  return std::make_exception_ptr(ClosedError(members_.prefix() + "interrupted" + where + "."));
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
    collective.began = Clock::now();  // the time before was the device's
  }
  context_.algorithm = "";
  Task body = collective.body(context_);
  co_await body;
  // A root that only sends has waited for no rank; it must still learn of a mismatch.
  for (std::size_t local = 0; local < board_.size(); ++local) {
    if (local != board_.me()) co_await board_.met(local);
  }
}

void Engine::drive_inline(Collective& collective, const Call& call) {
  Scheduler& scheduler = collective.scheduler;
  std::optional<WaitScope> scope;
  collective.root = run(collective);
  collective.root.start(scheduler);
  while (!collective.root.done()) {
    if (scheduler.poll()) continue;
    if (spins_ && spin([&scheduler] { return scheduler.poll(); })) continue;
    board_.arm(Sleeper::kCaller);
    if (!scheduler.poll()) {
      if (!check(collective)) {
        const Clock::duration most = scope ? Clock::duration(std::chrono::seconds(1)) : kShortWait;
        const auto left =
            std::clamp<Clock::duration>(collective.next_look() - Clock::now(), std::chrono::milliseconds(1), most);
        board_.sleep(left);
        if (call.interrupted && call.interrupted()) scheduler.fail(interruption());
        if (!scope && Clock::now() - collective.began >= kShortWait) scope.emplace(*collective.handle);
      }
    }
    board_.disarm();
  }
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
  if (!active_) active_ = queue_.take();
  if (!active_) return false;
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
    // A coroutine of it that threw has released its buffers, and no stream may write into them.
    const bool goes_on = is_for_all(collective, failure);
    for (const auto& link : links_) {
      if (!link) continue;
      goes_on ? link->drop(collective.fingerprint.sequence) : link->abandon();
    }
  }
  if (!collective.root.done()) return moved;
  if (failure) end_failed(collective, failure);
  const std::unique_ptr<Collective> ended = std::move(active_);
  const Clock::time_point end = record(*ended);  // before a caller may drive the next one, which shares the context
  queue_.end(*ended, end, failure != nullptr);
  ended->handle->complete(failure);
  return true;
}

bool Engine::poll() {
  bool moved = poll_collective();
  moved |= mail_.poll();
  const auto now = Clock::now();
  check_queue(now);
  if (failures_.is_news()) check_announced();
  mail_.check(now);
  failures_.check_suspects(now);
  return moved;
}

bool Engine::spins() { return spins_ && active_ && members_.hosts.size() == 1 && active_->handle->is_urgent(); }

void Engine::arm() {
  if (members_.local_ranks().size() == 1) return;
  if (active_) board_.arm(Sleeper::kProgress);
  connections_.transport->arm_streams();
}

Clock::time_point Engine::deadline() {
  const Clock::time_point active = active_ ? active_->next_look() : Clock::time_point::max();
  return std::min({active, queue_.deadline(), mail_.deadline(), failures_.deadline()});
}

void Engine::wake_caller() { board_.wake(); }

}  // namespace smdp
