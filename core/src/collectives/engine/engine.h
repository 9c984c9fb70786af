// What runs the operations of one group, one collective after the other, in the order of the calls.
//
// A collective is driven by one thread at a time: by the blocked caller, if all ranks share this host and nothing else
// is queued (it spins a little, then sleeps on a futex), else by the progress thread.
//
// The engine drives. What it drives with is cut by what it does: CallQueue has the calls, and says who drives; Failures
// has the error that ends the group, and who is gone; Diagnosis finds out who is late; Mail has the messages between
// two ranks.
//
// Locks: the engine has none. Its fields belong to the progress thread, except the board and the context, which belong
// to whoever drives. Each of the others guards its own fields. The order, of which a thread may skip any, is:
// CallQueue's or Diagnosis's, never both; then Failures', an operation's, or that of thread_wait.cpp.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collectives/context.h"
#include "collectives/engine/call_queue.h"
#include "collectives/engine/collective.h"
#include "collectives/engine/diagnosis.h"
#include "collectives/engine/failures.h"
#include "collectives/engine/group_thread.h"
#include "collectives/engine/mail.h"
#include "collectives/planner.h"
#include "rendezvous/bootstrap.h"
#include "smdp/group.h"
#include "transport/control.h"
#include "transport/progress.h"

namespace smdp {

class Engine final : public Progress::Client {
 public:
  using Body = Collective::Body;

  // Throws ShortageError, of which the other ranks have been told.
  Engine(Connections connections, const GroupOptions& options);
  ~Engine() override;

  // Runs a collective. Returns null if it was not async (then it is done, and its error was thrown).
  // bytes: of this rank's tensors, for counters.
  // is_open: this rank has not given all its data yet; until it has, no time counts against the deadline. May be empty.
  Group::Handle collective(Fingerprint fingerprint, std::size_t bytes, Body body, const Call& call,
                           std::function<bool()> is_open = {});
  // Block unless the call is async.
  Group::Handle send(Mailbox::Request request, const Call& call);
  Group::Handle receive(Mailbox::Request request, const Call& call);

  // Looks at the operation under way again.
  void wake() { progress_->wake(); }

  void abort(const std::string& reason);
  void shutdown(const std::string& reason);

  const Members& members() const { return members_; }
  const Planner& planner() const { return planner_; }
  std::size_t slot_bytes() const { return board_.slot_bytes(); }
  // Connections to a rank on another host; 0: there is none.
  std::size_t streams() const { return connections_.transport->streams(); }

  Failures& failures() { return failures_; }
  const Failures& failures() const { return failures_; }
  const CallQueue& queue() const { return queue_; }
  Diagnosis& diagnosis() { return diagnosis_; }
  Mail& mail() { return mail_; }

  bool poll() override;
  bool spins() override;
  void arm() override;
  Clock::time_point deadline() override;

 private:
  using Tell = Failures::Tell;

  // Progress thread.
  void connect();
  bool poll_collective();
  // Whoever drives.
  Task run(Collective& collective);
  // Counts and traces an operation that has ended, and returns when.
  Clock::time_point record(const Collective& collective) const;
  // The caller.
  void drive_inline(Collective& collective, const Call& call);
  // Waits for a queued operation, and for an interruption.
  void wait(Operation& operation, const Call& call);
  std::exception_ptr interruption() const;
  // Any thread.
  void wake_caller();

  // engine_checks.cpp: reasons to stop waiting. Whoever drives, the first two: failure, departure, deadline. True if a
  // wait may be over now.
  bool check(Collective& collective);
  bool check_departed(Collective& collective);
  bool may_still_send(int rank) const;
  // Progress thread, both: queued operations; those that wait for a call that rank 0, which has left, has announced.
  void check_queue(Clock::time_point now);
  void check_announced();

  // engine_errors.cpp: what an error ends. The error that has ended an operation; null: none has. Says what it was that
  // memory was missing for.
  std::exception_ptr error_of(const Collective& collective) const;
  // Every rank gets the error in this very operation, so that the group goes on.
  bool is_for_all(const Collective& collective, const std::exception_ptr& error) const;
  // An operation has ended with an error.
  void end_failed(const Collective& collective, const std::exception_ptr& error);
  // Progress thread, from here on. By another rank; by a link.
  void on_refused(std::uint64_t sequence, const std::string& text);
  void on_mismatch(std::uint64_t sequence, std::exception_ptr error);
  void on_abort(const Failure& failure);
  void tell_failure();
  void fail_everything();

  std::shared_ptr<Progress> progress_;
  Connections connections_;
  const Members& members_;
  const GroupOptions options_;
  Planner planner_;
  Board& board_;
  std::vector<std::unique_ptr<Link>> links_;
  Context context_;
  GroupThread thread_;
  Failures failures_;
  CallQueue queue_;
  Diagnosis diagnosis_;
  Mail mail_;
  std::unique_ptr<Control> control_;  // until shutdown()
  const bool spins_;

  std::unique_ptr<Collective> active_;  // driven by the progress thread
  // Of several hosts: operations that fail, or have failed, on all ranks, and why.
  std::map<std::uint64_t, std::string> refused_;
};

}  // namespace smdp
