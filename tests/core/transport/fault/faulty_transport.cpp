#include "transport/fault/faulty_transport.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "smdp/error.h"

namespace smdp::test {
namespace {

// Slots are written at once, in the shared memory; flags come late.
class FaultyBoard final : public Board, public FaultyTransport::Holder {
 public:
  FaultyBoard(FaultyTransport& owner, Board& inner, const Members& members)
      : Board(members, inner.slot_bytes()), owner_(owner), inner_(inner) {}

  void enter(const Fingerprint& fingerprint) override { inner_.enter(fingerprint); }
  const Fingerprint& operation() const override { return inner_.operation(); }
  void compare_all() override { inner_.compare_all(); }
  void give_up() override {
    flush();
    inner_.give_up();
  }
  bool is_in_doubt() const override { return inner_.is_in_doubt(); }
  void agree_on_rounds() override { inner_.agree_on_rounds(); }
  std::uint64_t take_rounds(std::size_t lane, std::uint64_t count) override { return inner_.take_rounds(lane, count); }
  std::byte* slot(std::size_t local, std::size_t lane, std::uint64_t round) const override {
    return inner_.slot(local, lane, round);
  }
  bool streams_slots(SlotUse use) const override { return inner_.streams_slots(use); }
  void record(SlotUse use, double seconds, std::size_t chunks) override { inner_.record(use, seconds, chunks); }

  void publish(std::size_t lane, std::uint64_t round) override {
    tell({lane, false}, [this, lane, round] { inner_.publish(lane, round); });
  }
  void consume(std::size_t lane, std::uint64_t round) override {
    tell({lane, true}, [this, lane, round] { inner_.consume(lane, round); });
  }

  bool has_met(std::size_t local) override { return inner_.has_met(local); }
  bool is_produced(std::size_t local, std::size_t lane, std::uint64_t round) override {
    return inner_.is_produced(local, lane, round);
  }
  bool is_writable(std::size_t local, std::size_t lane, std::uint64_t round) override {
    return inner_.is_writable(local, lane, round);
  }
  bool has_given_up(std::size_t local) const override { return inner_.has_given_up(local); }
  void arm(Sleeper sleeper) override { inner_.arm(sleeper); }
  void sleep(std::chrono::nanoseconds at_most) override { inner_.sleep(at_most); }
  void disarm() override { inner_.disarm(); }
  void wake() override { inner_.wake(); }

  bool release(Clock::time_point now) override {
    const std::lock_guard lock(mutex_);
    return held_.release(now);
  }
  Clock::time_point next_due() override {
    const std::lock_guard lock(mutex_);
    return held_.next_due();
  }

 private:
  using Counter = std::pair<std::size_t, bool>;  // lane, and whether it is the one of what is consumed

  // Each counter only grows: what is told of one keeps its order.
  void tell(const Counter& counter, const std::function<void()>& act) {
    const std::lock_guard lock(mutex_);
    switch (owner_.fault()) {
      case Fault::kDrop:
      case Fault::kSilence:
        if (!owner_.loses_next()) act();
        return;
      case Fault::kDelay:
        owner_.count_hit();
        held_.delay(act);
        break;
      case Fault::kReorder:
        if (counter == last_) held_.release_all();
        last_ = counter;
        if (held_.reorder(act)) owner_.count_hit();
        break;
      case Fault::kClose:
        act();
        return;
    }
    owner_.wake();
  }
  void flush() {
    const std::lock_guard lock(mutex_);
    held_.release_all();
  }

  FaultyTransport& owner_;
  Board& inner_;
  std::mutex mutex_;  // guards held_, and orders what the progress thread tells with what whoever drives does
  Held held_{0};
  Counter last_{kLanes, false};
};

class FaultyLink final : public Link, public FaultyTransport::Holder {
 public:
  FaultyLink(FaultyTransport& owner, std::unique_ptr<Link> inner, int peer, Handlers handlers)
      : owner_(owner), inner_(std::move(inner)), peer_(peer), handlers_(std::move(handlers)) {
    owner_.add(this);
  }
  ~FaultyLink() override { owner_.remove(this); }

  void enter(const Fingerprint& fingerprint) override { inner_->enter(fingerprint); }
  void send(std::uint64_t slot, const std::byte* data, std::size_t size, Pending& pending,
            std::size_t streams) override {
    ++pending;
    const auto tell = [this, slot, data, size, &pending, streams] {
      --pending;
      inner_->send(slot, data, size, pending, streams);
    };
    switch (owner_.fault()) {
      case Fault::kDrop:
      case Fault::kSilence:
        if (!owner_.loses_next()) return tell();
        --pending;  // TCP has taken it
        return;
      case Fault::kDelay:
        owner_.count_hit();
        return held_.delay(tell);
      case Fault::kReorder:
        return owner_.reorder(this, tell);
      case Fault::kClose:
        tell();
        sent_ += size;
        if (sent_ >= owner_.at() && !inner_->is_broken()) close();
        return;
    }
  }
  void receive(std::uint64_t slot, std::byte* data, std::size_t size, Pending& pending) override {
    inner_->receive(slot, data, size, pending);
  }
  void drop(std::uint64_t sequence) override {
    forget();
    inner_->drop(sequence);
  }
  void reset() override {
    forget();
    inner_->reset();
  }
  void abandon() override {
    forget();
    inner_->abandon();
  }
  bool is_broken() const override { return inner_->is_broken(); }

  bool release(Clock::time_point now) override { return held_.release(now); }
  Clock::time_point next_due() override { return held_.next_due(); }

 private:
  void forget() {
    held_.forget();
    owner_.forget(this);
  }
  // What the kernel has not taken yet goes with it.
  void close() {
    owner_.count_hit();
    inner_->reset();
    handlers_.on_broken(peer_, "closed by a test");
  }

  FaultyTransport& owner_;
  const std::unique_ptr<Link> inner_;
  const int peer_;
  const Handlers handlers_;
  std::size_t sent_ = 0;
  Held held_{1};
};

class FaultyStream final : public ByteStream, public FaultyTransport::Holder {
 public:
  FaultyStream(FaultyTransport& owner, std::unique_ptr<ByteStream> inner) : owner_(owner), inner_(std::move(inner)) {
    owner_.add(this);
  }
  ~FaultyStream() override { owner_.remove(this); }

  std::size_t write(std::span<const std::byte> data) override {
    switch (owner_.fault()) {
      case Fault::kDrop:
      case Fault::kSilence:
        is_mute_ = is_mute_ || owner_.loses_next();
        return is_mute_ ? data.size() : inner_->write(data);
      case Fault::kDelay:
      case Fault::kReorder:
        return late(data);
      case Fault::kClose:
        return up_to_the_end(data);
    }
    return 0;
  }
  std::size_t read(std::span<std::byte> data) override {
    check_open();
    return inner_->read(data);
  }
  void want_room(bool wanted) override {
    if (inner_) inner_->want_room(wanted);
  }

  bool release(Clock::time_point now) override {
    const bool is_due = now >= due_;
    if (is_due) due_ = Clock::time_point::max();
    is_ready_ = is_ready_ || is_due;
    return is_due;
  }
  Clock::time_point next_due() override { return due_; }

 private:
  // Once it is ready it takes one write.
  std::size_t late(std::span<const std::byte> data) {
    if (std::exchange(is_ready_, false)) return inner_->write(data);
    if (due_ == Clock::time_point::max()) {
      owner_.count_hit();
      due_ = Clock::now() + Held::kMost;
    }
    return 0;
  }
  std::size_t up_to_the_end(std::span<const std::byte> data) {
    check_open();
    if (written_ == owner_.at()) {
      owner_.count_hit();
      inner_.reset();
      check_open();
    }
    const std::size_t written = inner_->write(data.first(std::min(data.size(), owner_.at() - written_)));
    written_ += written;
    return written;
  }
  void check_open() const {
    if (!inner_) throw Error("closed by a test");
  }

  FaultyTransport& owner_;
  std::unique_ptr<ByteStream> inner_;
  bool is_mute_ = false;
  bool is_ready_ = false;
  Clock::time_point due_ = Clock::time_point::max();
  std::size_t written_ = 0;
};

}  // namespace

FaultyTransport::FaultyTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Progress> progress,
                                 const Members& members, Faults faults)
    : progress_(std::move(progress)), members_(members), faults_(std::move(faults)), inner_(std::move(inner)) {
  auto board = std::make_unique<FaultyBoard>(*this, inner_->board(), members_);
  progress_->run([&] {
    add(board.get());
    progress_->add(this);
  });
  board_ = std::move(board);
}

FaultyTransport::~FaultyTransport() {
  progress_->run([this] { progress_->remove(this); });
}

std::unique_ptr<Link> FaultyTransport::open_link(int rank, Link::Handlers handlers) {
  return std::make_unique<FaultyLink>(*this, inner_->open_link(rank, handlers), rank, handlers);
}

std::unique_ptr<ByteStream> FaultyTransport::open_stream(int rank) {
  return std::make_unique<FaultyStream>(*this, inner_->open_stream(rank));
}

void FaultyTransport::reorder(const void* link, std::function<void()> tell) {
  if (link == last_link_) overtaken_.release_all();
  last_link_ = link;
  if (overtaken_.reorder(std::move(tell))) count_hit();
}

void FaultyTransport::forget(const void* link) {
  if (link == last_link_) overtaken_.forget();
}

bool FaultyTransport::loses_next() {
  const std::uint64_t number = told_.fetch_add(1);
  if (faults_.fault == Fault::kDrop ? number != faults_.at : number < faults_.at) return false;
  count_hit();
  return true;
}

bool FaultyTransport::poll() {
  const Clock::time_point now = Clock::now();
  bool moved = overtaken_.release(now);
  for (std::size_t i = 0; i < holders_.size(); ++i) moved |= holders_[i]->release(now);
  return moved;
}

Clock::time_point FaultyTransport::deadline() {
  Clock::time_point first = overtaken_.next_due();
  for (Holder* holder : holders_) first = std::min(first, holder->next_due());
  return first;
}

}  // namespace smdp::test
