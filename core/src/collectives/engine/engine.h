// Runs the operations of one group, one collective after the other, in the order of the calls.
//
// A collective is driven by one thread at a time: by the blocked caller, if all ranks share this host and nothing else
// is queued (it spins briefly, then sleeps on a futex), and by the progress thread otherwise.
//
// The engine's parts are divided by task: CallQueue has the calls and decides which thread drives; Failures has the
// error that ends the group and the ranks that are gone; Diagnosis finds out which ranks are late; Mail has the
// messages between two ranks.
//
// Locks: the engine has none. Its fields belong to the progress thread, except the board and the context, which belong
// to the driving thread. Each of the parts guards its own fields. The order of locks, of which a thread may skip any,
// is: that of CallQueue or Diagnosis, never both; then that of Failures, of an operation, or of thread_wait.cpp.
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

  // Throws ShortageError, after the other ranks have been told.
  Engine(Connections connections, const GroupOptions& options);
  ~Engine() override;

  // Runs a collective. Returns null if it was not async; then it is done, and its error was thrown. bytes: size of this
  // rank's tensors, for counters. is_open: returns whether this rank has not provided all its data yet; as long as it
  // has not, no time counts against the deadline. May be empty.
  Group::Handle collective(Fingerprint fingerprint, std::size_t bytes, Body body, const Call& call,
                           std::function<bool()> is_open = {});
  // Block unless the call is async.
  Group::Handle send(Mailbox::Request request, const Call& call);
  Group::Handle receive(Mailbox::Request request, const Call& call);

  // Makes the driving thread look at the running operation again.
  void wake() { progress_->wake(); }

  void abort(const std::string& reason);
  void shutdown(const std::string& reason);

  const Members& members() const { return members_; }
  const Planner& planner() const { return planner_; }
  std::size_t slot_bytes() const { return board_.slot_bytes(); }
  // Returns the number of connections to each rank on another host; 0: there are none.
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
  // The driving thread.
  Task run(Collective& collective);
  // Counts and traces an operation that has ended, and returns the time of its end.
  Clock::time_point record(const Collective& collective) const;
  // The caller.
  void drive_inline(Collective& collective, const Call& call);
  // Waits for a queued operation or an interruption.
  void wait(Operation& operation, const Call& call);
  std::exception_ptr interruption() const;
  // Any thread.
  void wake_caller();

  // engine_checks.cpp: reasons to stop waiting. The first two are called by the driving thread and check for failures,
  // departures and the deadline. They return whether a wait may be over now.
  bool check(Collective& collective);
  bool check_departed(Collective& collective);
  bool may_still_send(int rank) const;
  // Progress thread: check_queue() checks queued operations; check_announced() checks for operations that wait for a
  // call that rank 0 announced before it left.
  void check_queue(Clock::time_point now);
  void check_announced();

  // engine_errors.cpp: what an error ends. error_of() returns the error that ended an operation, or null. If memory ran
  // out, the error says for what.
  std::exception_ptr error_of(const Collective& collective) const;
  // Returns whether every rank gets the error in this same operation, so that the group stays usable.
  bool is_for_all(const Collective& collective, const std::exception_ptr& error) const;
  // Handles an operation that ended with an error.
  void end_failed(const Collective& collective, const std::exception_ptr& error);
  // Progress thread, from here on. on_refused(): another rank refused an operation; on_mismatch(): a link did.
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
  std::unique_ptr<Control> control_;  // null after shutdown()
  const bool spins_;

  std::unique_ptr<Collective> active_;  // driven by the progress thread
  // On several hosts: operations that fail or have failed on all ranks, and the reason.
  std::map<std::uint64_t, std::string> refused_;
};

}  // namespace smdp
