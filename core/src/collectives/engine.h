// What runs the operations of one group, one collective after the other, in the order of the calls.
//
// A collective is driven by one thread at a time: by the blocked caller, if all ranks share this host and nothing else
// is queued (it spins a little, then sleeps on a futex), else by the progress thread.
//
// Locks: mutex_ guards what is marked below; an operation's own lock is the only one taken under it, no callback but
// is_open runs under it.
// Everything else belongs to the progress thread, except the board, which belongs to whoever drives.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collectives/context.h"
#include "collectives/planner.h"
#include "common/failure.h"
#include "common/thread_wait.h"
#include "rendezvous/bootstrap.h"
#include "smdp/group.h"
#include "transport/control.h"
#include "transport/mail/mailbox.h"
#include "transport/progress.h"

namespace smdp {

class Engine final : public Progress::Client {
 public:
  using Body = std::function<Task(Context&)>;

  // Throws ShortageError, of which the other ranks have been told.
  Engine(Connections connections, const GroupOptions& options);
  ~Engine() override;

  // Runs a collective. Returns null if it was not async (then it is done, and its error was thrown).
  // bytes: of this rank's tensors, for counters.
  // is_open: this rank has not given all its data yet; until it has, no time counts against the deadline. May be empty.
  Group::Handle collective(Fingerprint fingerprint, std::size_t bytes, Body body, const Call& call,
                           std::function<bool()> is_open = {});
  Group::Handle send(Mailbox::Request request, const Call& call);
  Group::Handle receive(Mailbox::Request request, const Call& call);
  Group::Handle offer(Mailbox::Request request);
  void refuse(int source, std::int64_t tag);
  void push_offers();
  // Has rank 0 ask all ranks what they wait for, though nothing need be under way here.
  void look_for_deadlock();

  // Looks at the operation under way again.
  void wake() { progress_->wake(); }

  void abort(const std::string& reason);
  void shutdown(const std::string& reason);
  std::exception_ptr error() const;
  // error(), or the departure of a rank: why nothing new can begin that needs every rank. Null while it can.
  std::exception_ptr obstacle() const;
  // Why one of these ranks does nothing any more, whatever has closed the group: it has died, or it has left. Else
  // null.
  std::exception_ptr death_of(const std::vector<int>& ranks) const;
  std::exception_ptr departure_of(const std::vector<int>& ranks) const;

  const Members& members() const { return members_; }
  const GroupOptions& options() const { return options_; }
  const Planner& planner() const { return planner_; }
  std::size_t slot_bytes() const { return board_.slot_bytes(); }
  // Connections to a rank on another host; 0: there is none.
  std::size_t streams() const { return streams_; }
  // Throws if the group is closed or this is a forked child.
  void check_usable() const;

  bool poll() override;
  bool spins() override;
  void arm() override;
  Clock::time_point deadline() override;

 private:
  // In a forked child: why the group is closed to it. Null other_wait.
  std::exception_ptr inherited_error() const;

  // kEveryoneAndBeyond: they tell the other groups in which they wait.
  enum class Tell { kNobody, kEveryone, kEveryoneAndBeyond };
  enum class Driver { kNone, kCaller, kProgress };

  // From a deadline to the error, for what has come meanwhile to be read: this process may have been stopped.
  static constexpr std::chrono::milliseconds kLastWord{50};

  struct Collective {
    Fingerprint fingerprint;
    std::size_t bytes;
    std::function<std::string()> label;
    bool is_counted = true;
    bool is_by_name = false;
    std::shared_ptr<Fingerprint> announced_name;  // it only tells which operation is next; null: an operation
    std::function<bool()> is_open;
    std::shared_ptr<Arrival> arrival;
    Body body;
    std::shared_ptr<Operation> handle = std::make_shared<Operation>();
    Scheduler scheduler;
    Task root;
    Clock::time_point deadline;
    std::chrono::milliseconds timeout;
    Clock::time_point began;
    Clock::time_point since;  // it waits for others
    Clock::time_point next_inquiry;
    Clock::time_point next_stall;  // when to ask for the next line about a stall, or to write it
    bool is_stall_inquired = false;
    bool was_open = false;  // when it was looked at last
    bool is_overdue = false;
    std::optional<Clock::time_point> next_late_line;

    // E.g. "all_reduce #12 float32[512] SUM (gradients 'a' to 'b')".
    std::string describe() const;
    // This rank's values have not left their device.
    bool is_late() const { return arrival && !arrival->is_there(); }
    // This rank has not given all it has to.
    bool waits_for_this_rank() const { return is_late() || (is_open && is_open()); }
    // A rank that it waits for; -1: none in particular.
    int awaited() const;
    Clock::time_point next_look() const { return std::min({next_inquiry, next_stall, deadline}); }
  };

  Task run(Collective& collective);
  void drive_inline(Collective& collective, const Call& call);
  void begin(Collective& collective);
  // engine_by_name.cpp. Under mutex_, the first five. The first returns an error if it cannot.
  std::exception_ptr queue_by_name(std::unique_ptr<Collective> collective);
  void queue_next_name(const Fingerprint& named);
  void end_by_name(const Collective& ended);
  void queue_from_aside();
  // Why the calls in aside_ wait, where announced_ is known.
  std::string reason_for_waiting_aside() const;
  // Fails the calls in aside_ if the rank that orders them has left.
  void check_departed_aside();
  // Sets when to look at it, from `since` on.
  void set_looks(Collective& collective) const;
  // Looks for reasons to stop waiting: failure, departure, deadline.
  // True if a wait may be over now.
  bool check(Collective& collective);
  bool check_departed(Collective& collective);
  // Whoever gives it less time than is usual here may do without it.
  bool is_patient(const Collective& collective) const { return collective.timeout >= options_.timeout; }
  void check_inquiry(Collective& collective, Clock::time_point now);
  void check_stall(Collective& collective, Clock::time_point now);
  void check_late(Collective& collective, Clock::time_point now);
  // Counts and traces an operation that has ended, and returns when.
  Clock::time_point record(const Collective& collective) const;
  // When to ask who is late, so that the answer is there at the deadline.
  static Clock::time_point inquiry_time(Clock::time_point deadline, std::chrono::milliseconds timeout);
  void check_mail(Clock::time_point now);
  // Operations in the queue and aside_ have deadlines, too.
  void check_queue(Clock::time_point now);
  void check_suspects(Clock::time_point now);
  bool poll_collective();
  Group::Handle mail(Mailbox::Request request);
  Group::Handle mail_until(Mailbox::Request request, const Call& call);
  void post_to_mailbox(std::function<void(Mailbox&)> work);

  // The error that has ended an operation; null: none has. Says what it was that memory was missing for.
  std::exception_ptr error_of(const Collective& collective) const;
  // An operation has ended with an error.
  void end_failed(const Collective& collective, const std::exception_ptr& error);
  // Every rank gets the error in this very operation, so that the group goes on.
  bool is_for_all(const Collective& collective, const std::exception_ptr& error) const;
  // Progress thread, both. By another rank; by a link.
  void on_refused(std::uint64_t sequence, const std::string& text);
  void on_mismatch(std::uint64_t sequence, std::exception_ptr error);
  // First error wins. Any thread.
  void fail(std::exception_ptr error, Tell whom);
  // Progress thread, all three.
  void connect();
  void tell_failure();
  void fail_everything();
  void on_abort(const Failure& failure);
  void on_left(int rank, const std::string& reason);
  void on_broken(int rank, const std::string& reason);
  bool may_still_send(int rank) const;
  std::string left_reason(int rank) const;
  std::string in_flight() const;
  void inquire(std::uint64_t sequence);
  // undone: what is awaited of the peer.
  std::string verdict_for(int peer, const char* undone = "has not sent its part") const;
  Control::Status status();
  // What it is in, if `operation` is one of its collectives that has not ended, and the last answer of an inquiry.
  std::optional<Control::OtherWait> place_of(const Operation* operation) const;
  // Of the thread that calls this group's collectives, in other groups.
  Control::OtherWait other_wait(const std::optional<ThreadWait>& wait);
  // Fails the group in which that thread waits, if it is another one.
  void fail_other_groups(const Failure& failure);
  // Waits for a queued operation, and for an interruption.
  void wait(Operation& operation, const Call& call);
  std::exception_ptr interruption() const;
  void wake_caller();

  std::shared_ptr<Progress> progress_;
  Connections connections_;
  const Members& members_;
  GroupOptions options_;
  Planner planner_;
  Board board_;
  std::vector<std::unique_ptr<Link>> links_;
  Context context_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<Control> control_;
  const bool spins_;
  const std::uint64_t fork_generation_;
  std::size_t streams_ = 0;

  std::unique_ptr<Collective> active_;                                 // driven by the progress thread
  std::map<int, std::pair<Clock::time_point, std::string>> suspects_;  // ranks with a broken stream: blamed then
  // Of several hosts: operations that fail, or have failed, on all ranks, and why.
  std::map<std::uint64_t, std::string> refused_;
  bool mail_inquired_ = false;
  std::optional<Clock::time_point> mail_overdue_since_;
  std::shared_ptr<Operation> alive_token_ = std::make_shared<Operation>();  // expires with shutdown()

  mutable std::mutex mutex_;
  std::condition_variable idle_;               // the caller has stopped driving
  Driver driver_ = Driver::kNone;              // guarded by mutex_, as all below
  std::thread::id caller_;                     // who drives, if it is a caller
  Clock::time_point last_end_{};               // of a collective that others in the queue have waited for
  std::uint64_t last_caller_ = this_thread();  // of a collective; before the first, who made the group
  const Operation* running_ = nullptr;         // unless it has a shorter deadline than the group's others
  std::deque<std::unique_ptr<Collective>> queue_;
  // Calls by name that have not ended. On ranks other than 0, aside_ holds those that are not queued yet, announced_ is
  // the next one to queue (its name is 0 while that is not known), and is_asking_for_next_ says that it is being asked.
  std::set<std::uint64_t> names_;
  std::map<std::uint64_t, std::unique_ptr<Collective>> aside_;
  Fingerprint announced_;
  bool is_asking_for_next_ = false;
  Fingerprint last_;          // of the running or last collective
  bool is_given_up_ = false;  // that one, by all ranks alike
  std::exception_ptr error_;
  std::optional<Failure> untold_;    // error_, while the other ranks are still to hear of it
  bool removed_ = false;             // shutdown() was called
  std::map<int, std::string> left_;  // ranks that left, and why
  std::map<int, std::exception_ptr> dead_;
  Control::Verdict verdict_;    // the last answer
  std::uint64_t inquired_ = 0;  // the collective that verdict_ is about
  std::optional<Clock::time_point> unanswered_since_;
  std::atomic<bool> stop_{false};  // error_ or left_ changed: whoever drives must look
};

}  // namespace smdp
