#include "common/service_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "common/shortage.h"

namespace smdp {
namespace {

// A new thread inherits its creator's signal mask. Signals caused by its own faults stay enabled, so that a handler can
// report where they occurred.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) ::sigdelset(&all, own);
    ::pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

 private:
  sigset_t old_{};
};

}  // namespace

std::thread service_thread(const std::string& name, std::function<void()> body) {
  const NoSignals masked;
  try {
    std::thread thread(std::move(body));
    ::pthread_setname_np(thread.native_handle(), name.c_str());
    return thread;
  } catch (const std::system_error& error) {
    throw shortage("pthread_create", "the thread " + name, error.code().value());
  }
}

}  // namespace smdp
