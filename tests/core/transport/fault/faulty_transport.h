// A transport around another one that loses, delays or reorders what its rank tells the others, or closes connections.
//
// What a rank tells: on the board what it publishes and consumes, on a link messages, on a stream bytes. A board has no
// connection to close. What goes to one rank on a link or stream keeps its order, and a stream that has lost
// bytes delivers nothing afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/fault/held.h"
#include "transport/members.h"
#include "transport/progress.h"
#include "transport/transport.h"

namespace smdp::test {

// kDrop loses one thing, kSilence that and all that follow.
enum class Fault : std::uint8_t { kDrop, kSilence, kDelay, kReorder, kClose };

struct Faults {
  Fault fault = Fault::kDrop;
  // Of kDrop and kSilence: the number, from 0, of what is lost. Of kClose: the byte of each connection at which it is
  // closed; a link ends with the message that has this byte.
  std::uint64_t at = 0;
  // How often something has gone wrong.
  std::shared_ptr<std::atomic<int>> hits = std::make_shared<std::atomic<int>>(0);
};

class FaultyTransport final : public Transport, public Progress::Client {
 public:
  // A part that holds back what is told, until its time has come.
  class Holder {
   public:
    Holder() = default;
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    virtual ~Holder() = default;
    // Tells what is due; true if that was anything.
    virtual bool release(Clock::time_point now) = 0;
    virtual Clock::time_point next_due() = 0;
  };

  FaultyTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Progress> progress, const Members& members,
                  Faults faults);
  ~FaultyTransport() override;

  Board& board() override { return *board_; }
  std::size_t streams() const override { return inner_->streams(); }
  std::unique_ptr<Link> open_link(int rank, Link::Handlers handlers) override;
  std::unique_ptr<ByteStream> open_stream(int rank) override;
  void arm_streams() override { inner_->arm_streams(); }

  bool poll() override;
  void arm() override {}
  Clock::time_point deadline() override;

  // For its parts, as all below. Progress thread.
  void add(Holder* holder) { holders_.push_back(holder); }
  void remove(Holder* holder) { std::erase(holders_, holder); }
  // What one link sends, so that the next that another one sends overtakes it.
  void reorder(const void* link, std::function<void()> tell);
  void forget(const void* link);
  // Any thread.
  Fault fault() const { return faults_.fault; }
  std::uint64_t at() const { return faults_.at; }
  void count_hit() { faults_.hits->fetch_add(1); }
  // Whether what is told now is lost.
  bool loses_next();
  void wake() { progress_->wake(); }

 private:
  const std::shared_ptr<Progress> progress_;
  const Members members_;
  const Faults faults_;
  const std::unique_ptr<Transport> inner_;
  std::atomic<std::uint64_t> told_{0};
  std::vector<Holder*> holders_;
  Held overtaken_{0};
  const void* last_link_ = nullptr;
  std::unique_ptr<Board> board_;
};

}  // namespace smdp::test
