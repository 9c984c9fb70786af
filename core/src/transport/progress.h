// The progress thread: epoll over sockets and doorbells, and polling of whatever said it has work.
//
// Everything below except post(), run() and wake() happens on the thread itself, so what it touches needs no locks.
// It never takes the GIL and never calls a framework, and it spins only for a client that asks for it.
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
  // Something polled before every sleep.
  class Client {
   public:
    Client() = default;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    virtual ~Client() = default;

    // Does what can be done without waiting; true if anything was done.
    virtual bool poll() = 0;
    // Something that comes through shared memory is waited for, and there are cores to spare.
    virtual bool spins() { return false; }
    // The thread is about to sleep: arrange to be woken. poll() is called once more afterwards.
    virtual void arm() = 0;
    // When poll() must be called at the latest.
    virtual Clock::time_point deadline() = 0;
  };
  using Callback = std::function<void(std::uint32_t events)>;

  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // From any thread: run `work` on the progress thread, later (post) or before returning (run, which throws what it
  // throws).
  void post(std::function<void()> work);
  void run(const std::function<void()>& work);
  // Any thread: poll the clients soon.
  void wake();
  // An eventfd that wakes the thread from wherever it is written to: other processes of this host get it.
  const FileDescriptor& doorbell() const { return wakeup_; }
  // Tells it from the doorbells of other processes.
  const std::string& doorbell_name() const { return doorbell_name_; }
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Progress thread only. The callback may remove its own descriptor. add() and modify() throw ShortageError.
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
