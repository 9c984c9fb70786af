#include "transport/progress.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "common/hmac.h"
#include "common/service_thread.h"
#include "common/shortage.h"
#include "common/spin.h"

namespace smdp {

namespace {

constexpr char kThread[] = "the progress thread";

void control(const FileDescriptor& epoll, int operation, int descriptor, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  if (::epoll_ctl(epoll.get(), operation, descriptor, &event) != 0) throw_if_short("epoll_ctl", kThread);
}

FileDescriptor made(const char* call, int descriptor) {
  if (descriptor < 0) throw shortage(call, kThread, errno);
  return FileDescriptor(descriptor);
}

}  // namespace

Progress::Progress()
    : epoll_(made("epoll_create1", ::epoll_create1(EPOLL_CLOEXEC))),
      wakeup_(made("eventfd", ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      doorbell_name_(to_hex(random_bytes(12))) {
  control(epoll_, EPOLL_CTL_ADD, wakeup_.get(), EPOLLIN);
  thread_ = service_thread("smdp-progress", [this] { loop(); });
}

Progress::~Progress() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (on_thread()) {
    thread_.detach();  // the last reference was dropped in a callback
  } else {
    thread_.join();
  }
}

void Progress::post(std::function<void()> work) {
  {
    const Lock lock(mutex_);
    posted_.push_back(std::move(work));
  }
  wake();
}

void Progress::run(const std::function<void()>& work) {
  if (on_thread()) {
    work();
    return;
  }
  struct Done {
    Mutex mutex;
    Condition condition;
    bool done SMDP_GUARDED_BY(mutex) = false;
    std::exception_ptr error SMDP_GUARDED_BY(mutex);
  } state;
  post([&] {
    std::exception_ptr error;
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    const Lock lock(state.mutex);
    state.error = error;
    state.done = true;
    state.condition.notify_one();
  });
  Lock lock(state.mutex);
  state.condition.wait(lock, [&]() SMDP_REQUIRES(state.mutex) { return state.done; });
  if (state.error) std::rethrow_exception(state.error);
}

void Progress::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakeup_.get(), &one, sizeof one);
}

void Progress::add(int descriptor, std::uint32_t events, Callback callback) {
  control(epoll_, EPOLL_CTL_ADD, descriptor, events);
  callbacks_[descriptor] = std::make_shared<Callback>(std::move(callback));
}

void Progress::modify(int descriptor, std::uint32_t events) { control(epoll_, EPOLL_CTL_MOD, descriptor, events); }

void Progress::remove(int descriptor) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
  callbacks_.erase(descriptor);
}

void Progress::add(Client* client) { clients_.push_back(client); }

void Progress::remove(Client* client) {
  clients_.erase(std::remove(clients_.begin(), clients_.end(), client), clients_.end());
}

bool Progress::run_posted() {
  std::vector<std::function<void()>> work;
  {
    const Lock lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& item : work) item();
  return !work.empty();
}

int Progress::sleep_limit_ms() const {
  Clock::time_point first = Clock::time_point::max();
  for (Client* client : clients_) first = std::min(first, client->deadline());
  if (first == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 60'000));
}

void Progress::loop() {
  const auto poll_clients = [this] {
    bool worked = false;
    for (std::size_t i = 0; i < clients_.size(); ++i) worked |= clients_[i]->poll();
    return worked;
  };
  std::array<epoll_event, 64> events{};
  for (;;) {
    bool worked = run_posted();
    {
      const Lock lock(mutex_);
      if (stopping_) return;
    }
    worked |= poll_clients();
    if (!worked && std::any_of(clients_.begin(), clients_.end(), [](Client* client) { return client->spins(); })) {
      worked = spin(poll_clients);
    }
    if (!worked) {
      for (Client* client : clients_) client->arm();
      worked = poll_clients();
    }
    const int limit = worked ? 0 : sleep_limit_ms();
    const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), limit);
    for (int i = 0; i < ready; ++i) {
      const int descriptor = events[static_cast<std::size_t>(i)].data.fd;
      if (descriptor == wakeup_.get()) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(wakeup_.get(), &count, sizeof count);
        continue;
      }
      const auto found = callbacks_.find(descriptor);
      if (found == callbacks_.end()) continue;  // removed by an earlier callback in this round
      const std::shared_ptr<Callback> callback = found->second;
      (*callback)(events[static_cast<std::size_t>(i)].events);
    }
  }
}

}  // namespace smdp
