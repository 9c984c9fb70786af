#include "common/service_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "smdp/error.h"

namespace smdp {
namespace {

// A thread begins with the mask of who makes it. Those that it raises itself stay, so that a handler can say where.
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
    throw Error(
        "[smdp] the thread " + name + " cannot be started: " + error.what() +
        ". Most likely this user, or the container, has as many processes and threads as it may have: raise the "
        "limit (ulimit -u, the container's pids limit; ulimit -v counts stacks), or start fewer ranks here.");
  }
}

}  // namespace smdp
