#include "rendezvous/acceptor.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "common/log.h"
#include "common/service_thread.h"
#include "smdp/error.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kGreeting{10};
constexpr milliseconds kLastGreeting{500};  // after a failure; a rank that has proved the secret sends the rest at once

}  // namespace

Acceptor::Acceptor(Setup setup, std::size_t expected, Deadline deadline)
    : setup_(std::move(setup)),
      deadline_(deadline),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      missing_(expected) {
  if (wake_.get() < 0) throw shortage("eventfd", "connections from other ranks", errno);
  if (expected > 0) {
    thread_ = service_thread("smdp-acceptor", [this] { loop(); });
  } else {
    over_.set_value();
  }
}

Acceptor::~Acceptor() {
  stop_.store(true);
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

bool Acceptor::is_over_within(milliseconds time) { return is_over_.wait_for(time) == std::future_status::ready; }

bool Acceptor::have_all_come() {
  const Lock lock(mutex_);
  if (failure_) throw ShortageError(*failure_);
  return missing_ == 0;
}

void Acceptor::run_apart(const std::function<void()>& work) {
  const Lock lock(mutex_);
  work();
}

void Acceptor::loop() {
  while (is_wanted()) {
    const Deadline soon = steady_clock::now() + milliseconds(50);
    try {
      FileDescriptor socket;
      if (has_room()) socket = accept_from(setup_.listeners, std::min(soon, deadline_), wake_.get());
      if (socket.get() >= 0) {
        take(std::move(socket));
      } else if (is_wanted()) {
        // With many unauthenticated peers, or after one hung up, poll() may return at once, so wait here.
        std::this_thread::sleep_until(std::min(soon, steady_clock::now() + milliseconds(20)));
      }
    } catch (const ShortageError& error) {
      fail(error);
    }
  }
  await_authenticated();
  hang_up();
  join_all();
  over_.set_value();
}

bool Acceptor::is_wanted() {
  const Lock lock(mutex_);
  return !stop_.load() && !failure_ && missing_ > 0 && steady_clock::now() < deadline_;
}

bool Acceptor::has_room() {
  const Lock lock(mutex_);
  forget_ended(sessions_);
  return has_room_for_unauthenticated(sessions_, most_unauthenticated_);
}

void Acceptor::take(FileDescriptor socket) {
  const Lock lock(mutex_);
  Session& session = sessions_.emplace_back();
  session.socket = std::move(socket);
  session.address = setup_.name(session.socket);
  try {
    session.thread = service_thread("smdp-acceptor", [this, &session] { greet(session); });
  } catch (const ShortageError&) {
    sessions_.pop_back();
    throw;
  }
}

void Acceptor::greet(Session& session) {
  try {
    const Deadline soon = std::min(deadline_, steady_clock::now() + kGreeting);
    const std::function<void()> place = setup_.greet(session.socket, soon, [&] {
      const Lock lock(mutex_);
      session.is_authenticated = true;
    });
    const Lock lock(mutex_);
    place();
    if (--missing_ == 0) ::eventfd_write(wake_.get(), 1);
  } catch (const ShortageError& error) {
    fail(error);
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    if (missing_ > 0 && !stop_.load()) refuse(session.address, error.what());
    session.socket.reset();
  }
  const Lock lock(mutex_);
  session.ended.store(true);
  has_ended_.notify_all();
}

// A rank that has proved the secret may consider its connection made, and learns of the failure only through it.
void Acceptor::await_authenticated() {
  Lock lock(mutex_);
  if (!failure_) return;
  has_ended_.wait_until(lock, steady_clock::now() + kLastGreeting, [this]() SMDP_REQUIRES(mutex_) {
    return std::none_of(sessions_.begin(), sessions_.end(),
                        [](const Session& session) { return session.is_authenticated && !session.ended.load(); });
  });
}

// A peer that has not proved its identity by now is not an expected rank.
void Acceptor::hang_up() {
  const Lock lock(mutex_);
  for (const Session& session : sessions_) {
    if (session.socket.get() < 0) continue;
    if (missing_ == 0)
      refuse(session.address, "all ranks have joined, and this peer has not proved to be one of them.");
    ::shutdown(session.socket.get(), SHUT_RDWR);
  }
}

// Without mutex_, which the sessions take. No other thread changes the list.
void Acceptor::join_all() SMDP_NO_THREAD_SAFETY_ANALYSIS {
  for (Session& session : sessions_) session.thread.join();
}

void Acceptor::fail(const ShortageError& error) {
  const Lock lock(mutex_);
  if (!failure_) failure_ = error;
  ::eventfd_write(wake_.get(), 1);
}

void Acceptor::refuse(const std::string& who, const std::string& why) {
  if (refused_.insert(who).second) log(LogLevel::kWarning, "refused a connection from " + who + ": " + why);
}

}  // namespace smdp
