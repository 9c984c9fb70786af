// Mutexes that clang's thread safety analysis can follow, unlike those of libstdc++, at the same cost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "common/thread_annotations.h"

namespace smdp {

class SMDP_CAPABILITY("mutex") Mutex {
 public:
  void lock() SMDP_ACQUIRE() { mutex_.lock(); }
  void unlock() SMDP_RELEASE() { mutex_.unlock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

class SMDP_CAPABILITY("shared mutex") SharedMutex {
 public:
  void lock() SMDP_ACQUIRE() { mutex_.lock(); }
  void unlock() SMDP_RELEASE() { mutex_.unlock(); }
  void lock_shared() SMDP_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() SMDP_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

// Holds a mutex for its lifetime, except between unlock() and lock().
class SMDP_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) SMDP_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~Lock() SMDP_RELEASE() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() SMDP_ACQUIRE() { lock_.lock(); }
  void unlock() SMDP_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

class SMDP_SCOPED_CAPABILITY ExclusiveLock {
 public:
  explicit ExclusiveLock(SharedMutex& mutex) SMDP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ExclusiveLock() SMDP_RELEASE() { mutex_.unlock(); }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class SMDP_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) SMDP_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() SMDP_RELEASE_GENERIC() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// Waits with a Lock, which it holds again when it returns. A predicate is a lambda that declares what it needs:
// `[this]() SMDP_REQUIRES(mutex_) { return is_done_; }`.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  // clang cannot tell that the lock holds the mutex that the predicate needs.
  template <class Predicate>
  void wait(Lock& lock, Predicate is_over) SMDP_NO_THREAD_SAFETY_ANALYSIS {
    condition_.wait(lock.lock_, is_over);
  }
  template <class Clock, class Duration>
  void wait_until(Lock& lock, const std::chrono::time_point<Clock, Duration>& deadline) {
    condition_.wait_until(lock.lock_, deadline);
  }
  template <class Clock, class Duration, class Predicate>
  bool wait_until(Lock& lock, const std::chrono::time_point<Clock, Duration>& deadline,
                  Predicate is_over) SMDP_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_until(lock.lock_, deadline, is_over);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace smdp
