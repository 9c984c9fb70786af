// The progress thread: it waits in epoll for sockets and doorbells, and polls its clients.
//
// Everything below except post(), run() and wake() happens on the thread itself, so that code needs no locks. The
// thread never takes the GIL, never calls a framework, and spins only for a client that asks for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/file_descriptor.h"
#include "common/mutex.h"

namespace smdp {

using Clock = std::chrono::steady_clock;

class Progress {
 public:
  // An object that the thread polls before every sleep.
  class Client {
   public:
    Client() = default;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    virtual ~Client() = default;

    // Does what can be done without waiting; returns whether anything was done.
    virtual bool poll() = 0;
    // Returns whether the client waits for something in shared memory and there are cores to spare.
    virtual bool spins() { return false; }
    // Arranges a wake-up because the thread is about to sleep. poll() is called once more afterwards.
    virtual void arm() = 0;
    // Returns the latest time at which poll() must be called.
    virtual Clock::time_point deadline() = 0;
  };
  using Callback = std::function<void(std::uint32_t events)>;

  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // Any thread. Run `work` on the progress thread: post() later, run() before it returns, rethrowing what `work`
  // throws.
  void post(std::function<void()> work);
  void run(const std::function<void()>& work);
  // Any thread: makes the thread poll the clients soon.
  void wake();
  // Returns an eventfd that wakes the thread when written to. Other processes of this host get it.
  const FileDescriptor& doorbell() const { return wakeup_; }
  // Returns a name that distinguishes it from the doorbells of other processes.
  const std::string& doorbell_name() const { return doorbell_name_; }
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Progress thread only. A callback may remove its own descriptor. add() and modify() throw ShortageError.
  void add(int descriptor, std::uint32_t events, Callback callback);
  void modify(int descriptor, std::uint32_t events);
  void remove(int descriptor);
  void add(Client* client);
  void remove(Client* client);

 private:
  void loop();
  bool run_posted();
  int sleep_limit_ms() const;

  FileDescriptor epoll_;
  FileDescriptor wakeup_;
  const std::string doorbell_name_;
  Mutex mutex_;
  std::vector<std::function<void()>> posted_ SMDP_GUARDED_BY(mutex_);
  bool stopping_ SMDP_GUARDED_BY(mutex_) = false;
  std::unordered_map<int, std::shared_ptr<Callback>> callbacks_;  // progress thread only
  std::vector<Client*> clients_;                                  // progress thread only
  std::thread thread_;
};

}  // namespace smdp
