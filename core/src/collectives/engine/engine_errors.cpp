// What an error ends: the operation if all ranks get the error, and otherwise the group.
#include <cerrno>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "collectives/engine/engine.h"
#include "common/failure.h"
#include "common/shortage.h"
#include "observability/trace.h"
#include "smdp/error.h"

namespace smdp {
namespace {

// Between hosts, no rank ends such an operation before it has data from every other rank.
bool needs_every_rank(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kBarrier:
    case OpKind::kSplit:
    case OpKind::kAllReduceSparse:  // begins with an all_gather of counts
      return true;
    default:
      return false;
  }
}

}  // namespace

std::exception_ptr Engine::error_of(const Collective& collective) const {
  const std::exception_ptr error = collective.scheduler.error();
  if (!error) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    const std::string lacking = without_tag(shortage("malloc", collective.describe(), ENOMEM).what());
    return std::make_exception_ptr(ShortageError(members_.prefix() + lacking));
  } catch (...) {
    return error;
  }
}

// On one host every rank compares itself with all others before an operation ends, so all of them detect a mismatch.
// Between hosts a rank may have ended its part, for example of a broadcast, before it can be told, and differing counts
// are known to only two ranks; that closes the group. A mismatch of calls by name also does, because ranks may have set
// other calls aside or may be asking which is next.
bool Engine::is_for_all(const Collective& collective, const std::exception_ptr& error) const {
  if (collective.is_by_name || collective.announced_name) return false;
  if (failures_.error()) return false;
  const bool is_one_host = members_.hosts.size() == 1;
  try {
    std::rethrow_exception(error);
  } catch (const CountMismatch&) {
    return is_one_host;
  } catch (const MismatchError&) {
    return is_one_host || needs_every_rank(collective.fingerprint.kind);
  } catch (...) {
    return false;
  }
}

void Engine::end_failed(const Collective& collective, const std::exception_ptr& error) {
  if (!is_for_all(collective, error)) return failures_.fail(error, Tell::kEveryone);
  board_.give_up();
  if (members_.hosts.size() > 1) {
    const std::string text = without_tag(Failure::of(error).text);
    const bool is_new = refused_.try_emplace(collective.fingerprint.sequence, text).second;
    if (is_new && control_) control_->refuse(collective.fingerprint.sequence, text);
  }
  queue_.give_up();
}

void Engine::on_refused(std::uint64_t sequence, const std::string& text) {
  if (!refused_.try_emplace(sequence, text).second) return;
  const std::uint64_t last = queue_.last().sequence;
  const bool has_entered = board_.operation().sequence >= sequence;
  if (sequence > last || (active_ && !has_entered)) return;  // it will fail when it begins
  const bool is_under_way = active_ && sequence == last;
  const std::string what = is_under_way ? active_->describe() + " failed: " : "";
  const auto error = std::make_exception_ptr(MismatchError(members_.prefix() + what + text));
  is_under_way ? active_->scheduler.fail(error) : failures_.fail(error, Tell::kEveryone);
}

void Engine::on_mismatch(std::uint64_t sequence, std::exception_ptr error) {
  const bool is_under_way = active_ && active_->fingerprint.sequence == sequence;
  is_under_way ? active_->scheduler.fail(std::move(error)) : failures_.fail(std::move(error), Tell::kEveryone);
}

// Called by the first thread that gets here: a program that has seen the error may shut down before the thread that
// failed has called this.
void Engine::tell_failure() {
  if (const std::optional<Failure> failure = failures_.take_untold()) control_->abort(*failure);
}

void Engine::fail_everything() {
  const std::exception_ptr error = failures_.error();
  const std::deque<std::unique_ptr<Collective>> queued = queue_.take_all();
  for (const auto& link : links_) {
    if (link) link->reset();  // before any coroutine frame is destroyed, because links write into its buffers
  }
  mail_.fail(error);
  if (active_) {
    active_->scheduler.fail(error);
    poll_collective();
  }
  for (const auto& collective : queued) collective->handle->complete(error);
}

void Engine::on_abort(const Failure& failure) {
  const std::string what = queue_.under_way();
  Failure own{failure.kind, members_.prefix(), failure.lost};
  if (!what.empty()) own.text += what + " failed: ";
  own.text += without_tag(failure.text);
  if (failure.is_deadlock) diagnosis_.fail_other_groups(failure);
  failures_.fail(own.exception(), Tell::kNobody);
}

void Engine::abort(const std::string& reason) {
  if (failures_.is_inherited()) return;
  failures_.fail(std::make_exception_ptr(ClosedError(members_.prefix() + "aborted: " + reason)), Tell::kEveryone);
}

void Engine::shutdown(const std::string& reason) {
  if (failures_.is_inherited()) return;
  if (!failures_.close()) return;
  progress_->run([&] {
    tell_failure();
    fail_everything();
    control_->leave(reason);
    control_.reset();
    links_.clear();
    links_.resize(static_cast<std::size_t>(members_.size));
    progress_->remove(this);
    thread_.close();
  });
  trace::finish();
  // A driving caller sees the error and returns; its buffers and the board must outlive it. If it is this thread,
  // interrupted by a signal handler, it returns after the handler.
  queue_.await_idle();
}

}  // namespace smdp
