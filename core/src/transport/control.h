// The control connections of a group: one idle connection per rank to rank 0, which carries news of deaths and
// departures, and diagnosis.
//
// It never carries payload, so keepalive works on it. Within a host its end means that the process is gone; between
// hosts it can also mean that the host is. Rank 0 relays messages. Thread safety: progress thread only, except the
// constructor.
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
  // What the thread that calls this group's collectives waits for outside this group. Waits have the ids of ThreadWait.
  struct OtherWait {
    std::uint64_t wait = 0;           // 0: not known to wait
    bool is_for_all = false;          // whether it waits for all ranks of this group
    std::uint64_t meeting = 0;        // hash of the name of the group that it is making; 0: none
    std::vector<std::uint64_t> made;  // the groups that it made before, as many as fit
    bool replaces_this = false;       // the new group replaces this one; also set for ranks whose threads do not wait
    std::vector<std::uint64_t> awaited;  // waits of other ranks that must end before this one can
    std::string what;                    // e.g. "it waits in barrier #3 of group 'b'"; may be empty
  };
  struct Status {
    Fingerprint last;           // the last collective that this rank began
    bool busy = false;          // whether this rank is still in it
    bool has_given_up = false;  // after a mismatch that all ranks know of
    std::uint64_t called = 0;   // how many collectives it has called, including queued ones
    std::uint64_t wait = 0;     // wait of the calling thread in a collective of this group; 0: none
    OtherWait other_wait;
  };
  struct Verdict {
    std::uint64_t sequence = 0;  // of the operation asked about
    std::string text;
    std::vector<std::uint64_t> awaited;  // waits that must end before the operation in question can
  };
  struct Callbacks {
    // The group must fail.
    std::function<void(const Failure& failure)> on_abort;
    // Collective `sequence` must fail, but not the group. Called once for each, on all ranks but the one that reports
    // it.
    std::function<void(std::uint64_t sequence, const std::string& text)> on_refused;
    // A rank has left on purpose. `reason` is empty for a normal end.
    std::function<void(int rank, const std::string& reason)> on_left;
    std::function<Status()> status;
  };

  // connections: on rank 0 one per other rank (by rank; [0] is empty); on other ranks one, to rank 0.
  Control(Progress& progress, const Members& members, std::vector<FileDescriptor> connections, Callbacks callbacks);
  ~Control() override;
  // Starts to listen, so callbacks may be called from now on. Progress thread.
  void open();

  // Tells all other ranks to fail.
  void abort(const Failure& failure);
  // The same for a group that could not be made, over connections that have no Control. Never throws.
  static void abort_over(const std::vector<FileDescriptor>& connections, int rank, const Failure& failure);
  // Fails collective `sequence` on all other ranks.
  void refuse(std::uint64_t sequence, const std::string& text);
  // Announces that this rank leaves, and closes. Takes up to half a second if the kernel has no room for the message.
  void leave(const std::string& reason);
  // Asks which ranks are behind collective `sequence` (0: only which ranks do not answer). The answer comes within
  // kInquiry unless rank 0 itself does not answer. A collective is refused if two ranks on different hosts called it
  // differently; all ranks abort if they wait for each other in different groups.
  void inquire(std::uint64_t sequence, std::function<void(const Verdict& verdict)> answer);

  static constexpr std::chrono::milliseconds kInquiry{700};

  bool poll() override;
  void arm() override {}
  Clock::time_point deadline() override;

 private:
  struct Peer {
    FileDescriptor socket;
    std::string received;  // incomplete message
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
  // Sends a question unless a keepalive probe of the peer is unanswered.
  void ask(int rank, const std::string& body);
  void broadcast(const std::string& body, int except);
  void flush(int rank);
  // This process ran out of a resource: all ranks fail, once.
  void lacks(const ShortageError& error);
  void close(int rank);
  void start_inquiry(Inquiry inquiry);
  // Ends this rank's inquiries that the verdict is about.
  void hand_out(const Verdict& verdict);

  Progress& progress_;
  const Members& members_;
  bool has_failed_ = false;  // for lack of a resource
  Callbacks callbacks_;
  std::vector<Peer> peers_;                                // by rank; on ranks other than 0 only [0] is used
  std::vector<std::pair<std::uint64_t, Answer>> waiting_;  // this rank's inquiries, by sequence
  std::set<std::uint64_t> refused_;                        // collectives whose refusal this rank has sent or received
  // Rank 0: the running inquiry.
  std::uint64_t number_ = 0;  // number of rounds of questions so far
  std::vector<Inquiry> inquiries_;
  std::unique_ptr<Answers> answers_;
  Clock::time_point inquiry_ends_ = Clock::time_point::max();
};

}  // namespace smdp
