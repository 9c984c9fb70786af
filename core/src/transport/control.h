// The control plane of a group: one idle connection per rank to rank 0, over which death, departure and diagnosis
// travel.
//
// It never carries payload, so keepalive works on it: within a host its end means the process is gone, between hosts
// also that the host is. Rank 0 relays. Thread safety: progress thread only, except the constructor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/failure.h"
#include "common/file_descriptor.h"
#include "transport/fingerprint.h"
#include "transport/members.h"
#include "transport/progress.h"

namespace smdp {

class Control final : public Progress::Client {
 public:
  struct Status {
    Fingerprint last;   // of the last collective this rank began
    bool busy = false;  // and whether it is in it still
  };
  struct Callbacks {
    // The group must fail.
    std::function<void(const Failure& failure)> on_abort;
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
  // Says goodbye and closes.
  void leave(const std::string& reason);
  // Asks who is behind collective `sequence` (0: only who does not answer). The answer comes within kInquiry, unless
  // rank 0 itself does not answer. If two ranks are in different collectives of the same number, all ranks abort.
  void inquire(std::uint64_t sequence, std::function<void(const std::string& verdict)> answer);

  static constexpr std::chrono::milliseconds kInquiry{700};

  bool poll() override;
  void arm() override {}
  Clock::time_point deadline() override;

 private:
  struct Message;
  struct Peer {
    FileDescriptor socket;
    std::string received;  // not yet a whole message
    std::string outgoing;  // not yet written
    bool left = false;
  };
  struct Inquiry {
    int from;
    std::uint64_t sequence;
  };

  void on_event(int rank, std::uint32_t events);
  void on_message(int rank, const std::string& body);
  void on_lost(int rank, int error);
  void send(int rank, const std::string& body);
  // Sends a question, unless the peer is in doubt already.
  void ask(int rank, const std::string& body);
  void broadcast(const std::string& body, int except);
  void flush(int rank);
  void close(int rank);
  void start_inquiry(Inquiry inquiry);
  std::string verdict(std::uint64_t sequence) const;
  // Among the answers: what two ranks called under one number; empty if they agree.
  std::string mismatch() const;

  Progress& progress_;
  const Members& members_;
  Callbacks callbacks_;
  std::vector<Peer> peers_;                                       // by rank; on others than rank 0 only [0] is used
  std::vector<std::function<void(const std::string&)>> waiting_;  // own inquiries
  // Rank 0: the inquiry under way.
  std::vector<Inquiry> inquiries_;
  std::vector<bool> answered_;
  std::vector<Status> statuses_;
  Clock::time_point inquiry_ends_ = Clock::time_point::max();
};

}  // namespace smdp
