// The control plane of a group: one idle connection per rank to rank 0, over which death, departure and diagnosis
// travel.
//
// It never carries payload, so keepalive works on it: within a host its end means the process is gone, between hosts
// also that the host is. Rank 0 relays. Thread safety: progress thread only, except the constructor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/failure.h"
#include "common/file_descriptor.h"
#include "common/shortage.h"
#include "transport/fingerprint.h"
#include "transport/members.h"
#include "transport/progress.h"

namespace smdp {

class Answers;

class Control final : public Progress::Client {
 public:
  // What the thread that calls this group's collectives waits for outside of it. Waits have the numbers of ThreadWait.
  struct OtherWait {
    std::uint64_t wait = 0;              // 0: it is not known to wait
    bool is_for_all = false;             // for all ranks of this group
    std::uint64_t meeting = 0;           // the group that it makes, by a hash of its name; 0: none
    std::vector<std::uint64_t> made;     // and those that it has made before, as many as fit
    bool replaces_this = false;          // a group in place of this one: also for ranks whose threads do not wait
    std::vector<std::uint64_t> awaited;  // waits of other ranks that cannot end before this one
    std::string what;                    // e.g. "it waits in barrier #3 of group 'b'"; may be empty
  };
  struct Status {
    Fingerprint last;           // of the last collective this rank began
    bool busy = false;          // and whether it is in it still
    bool has_given_up = false;  // after a mismatch of which all ranks know
    std::uint64_t called = 0;   // how many it has called; some may be queued
    std::uint64_t wait = 0;     // of the thread that calls collectives, in one of this group; 0: none
    OtherWait other_wait;
  };
  struct Verdict {
    std::uint64_t sequence = 0;  // of the operation asked about
    std::string text;
    std::vector<std::uint64_t> awaited;  // waits that must end before the operation asked about can
  };
  struct Callbacks {
    // The group must fail.
    std::function<void(const Failure& failure)> on_abort;
    // Collective `sequence` must fail, though not the group. Once for each, on all ranks but the one that says so.
    std::function<void(std::uint64_t sequence, const std::string& text)> on_refused;
    // A rank has left on purpose. reason is empty for a normal end.
    std::function<void(int rank, const std::string& reason)> on_left;
    std::function<Status()> status;
  };

  // connections: on rank 0 one per other rank (index rank; [0] is empty), elsewhere one, to rank 0.
  Control(Progress& progress, const Members& members, std::vector<FileDescriptor> connections, Callbacks callbacks);
  ~Control() override;
  // Listens from here on: callbacks may come. On the progress thread.
  void open();

  // Tells all other ranks to fail.
  void abort(const Failure& failure);
  // The same where the group was not made: over connections of which there is no Control. Never throws.
  static void abort_over(const std::vector<FileDescriptor>& connections, int rank, const Failure& failure);
  // Fails collective `sequence` on all other ranks.
  void refuse(std::uint64_t sequence, const std::string& text);
  // Says goodbye and closes. Takes up to half a second where the kernel has no room for the message.
  void leave(const std::string& reason);
  // Asks who is behind collective `sequence` (0: only who does not answer). The answer comes within kInquiry, unless
  // rank 0 itself does not answer. A collective is refused if two ranks on different hosts have called it
  // differently; all ranks abort if they wait for each other in different groups.
  void inquire(std::uint64_t sequence, std::function<void(const Verdict& verdict)> answer);

  static constexpr std::chrono::milliseconds kInquiry{700};

  bool poll() override;
  void arm() override {}
  Clock::time_point deadline() override;

 private:
  struct Peer {
    FileDescriptor socket;
    std::string received;  // not yet a whole message
    std::string outgoing;  // not yet written
    bool awaits_room = false;
    bool left = false;
  };
  struct Inquiry {
    int from;
    std::uint64_t sequence;
  };
  using Answer = std::function<void(const Verdict& verdict)>;

  void on_event(int rank, std::uint32_t events);
  void on_message(int rank, const std::string& body);
  void on_lost(int rank, int error);
  void send(int rank, const std::string& body);
  // Sends a question, unless the peer is in doubt already.
  void ask(int rank, const std::string& body);
  void broadcast(const std::string& body, int except);
  void flush(int rank);
  // This process lacks something: all ranks fail, once.
  void lacks(const ShortageError& error);
  void close(int rank);
  void start_inquiry(Inquiry inquiry);
  // Ends the own inquiries that it is about.
  void hand_out(const Verdict& verdict);

  Progress& progress_;
  const Members& members_;
  bool has_failed_ = false;  // for want of something
  Callbacks callbacks_;
  std::vector<Peer> peers_;                                // by rank; on others than rank 0 only [0] is used
  std::vector<std::pair<std::uint64_t, Answer>> waiting_;  // own inquiries, by sequence
  std::set<std::uint64_t> refused_;                        // collectives that this rank was told of, or told
  // Rank 0: the inquiry under way.
  std::uint64_t number_ = 0;  // of rounds of questions so far
  std::vector<Inquiry> inquiries_;
  std::unique_ptr<Answers> answers_;
  Clock::time_point inquiry_ends_ = Clock::time_point::max();
};

}  // namespace smdp
