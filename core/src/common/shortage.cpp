#include "common/shortage.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

namespace smdp {
namespace {

constexpr rlim_t kEnoughFiles = 4096;
constexpr rlim_t kEnoughThreads = 4096;

bool is_denial(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

std::string number(rlim_t value) { return value == RLIM_INFINITY ? "no limit" : std::to_string(value); }

rlimit limit_of(int resource) {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(static_cast<decltype(RLIMIT_NOFILE)>(resource), &limit);
  return limit;
}

// Returns, for example, "64 (hard limit 1024)".
std::string both(const rlimit& limit) {
  return number(limit.rlim_cur) + " (hard limit " + number(limit.rlim_max) + ")";
}

// Returns the content of a file of /proc or /sys. Empty if it cannot be read, perhaps for the same shortage.
std::string setting(const char* path) {
  std::string value;
  std::ifstream(path) >> value;
  return value;
}

std::string with_value(const std::string& name, const std::string& value) {
  return name + " is " + (value.empty() ? "unknown" : value);
}

std::string advice_on_files() {
  const rlimit limit = limit_of(RLIMIT_NOFILE);
  const rlim_t enough = limit.rlim_cur == RLIM_INFINITY ? kEnoughFiles : std::max(kEnoughFiles, 2 * limit.rlim_cur);
  return "The limit of open files of this process is " + both(limit) +
         ". A rank needs about 20 of them, plus one per group. Rank 0 needs three more per rank, plus one per rank for "
         "every further group. Raise the limit where the job is started: `ulimit -n " +
         std::to_string(enough) + "`, or --ulimit nofile=" + std::to_string(enough) + " of a container.";
}

std::string advice_on_threads() {
  const rlimit limit = limit_of(RLIMIT_NPROC);
  const rlim_t enough = limit.rlim_cur == RLIM_INFINITY ? kEnoughThreads : std::max(kEnoughThreads, 2 * limit.rlim_cur);
  return "The limit of processes and threads of this user is " + both(limit) + ", and " +
         with_value("the container's pids.max", setting("/sys/fs/cgroup/pids.max")) +
         ". A rank needs about 10 threads, and rank 0 needs one more per rank. Raise the lower limit where the job is "
         "started: `ulimit -u " +
         std::to_string(enough) + "`, or --pids-limit of a container; `ulimit -v` counts the stacks of threads.";
}

std::string advice_on_memory(std::size_t bytes) {
  const std::string needed = bytes == 0 ? "" : "It asked for " + std::to_string(bytes) + " bytes. ";
  return needed + "The limit of this process's address space is " + both(limit_of(RLIMIT_AS)) + " bytes, " +
         with_value("the container's memory.max", setting("/sys/fs/cgroup/memory.max")) + ", and " +
         with_value("vm.max_map_count", setting("/proc/sys/vm/max_map_count")) +
         ". Start fewer ranks on this machine, or raise the limit that is too low: `ulimit -v unlimited`, or --memory "
         "of a "
         "container.";
}

std::string advice(const std::string& call, int error, std::size_t bytes) {
  switch (error) {
    case EMFILE:
    case ETOOMANYREFS:
      return advice_on_files();
    case ENFILE:
      return "The machine's limit of open files has been reached: " +
             with_value("fs.file-max", setting("/proc/sys/fs/file-max")) +
             ". Raise it as root with `sysctl fs.file-max=1000000`, or stop the processes that hold so many.";
    case EAGAIN:
      return advice_on_threads();
    case ENOSPC:
      if (call == "epoll_ctl") {
        return "This user's limit of watched files has been reached: " +
               with_value("fs.epoll.max_user_watches", setting("/proc/sys/fs/epoll/max_user_watches")) +
               ". Raise it as root with `sysctl fs.epoll.max_user_watches=1000000`.";
      }
      return bytes == 0 ? "The disk or the user's quota is full; check it with `df -h`." : advice_on_memory(bytes);
    case EFBIG: {
      const std::string needed = bytes == 0 ? "" : "It asked for " + std::to_string(bytes) + " bytes. ";
      return needed + "The limit of file sizes of this process, which holds for shared memory, is " +
             both(limit_of(RLIMIT_FSIZE)) + " bytes. Raise it where the job is started: `ulimit -f unlimited`.";
    }
    case EPERM:
    case EACCES:
    case ENOSYS:
      return "A sandbox or a security policy (seccomp, AppArmor, SELinux, a firewall) does not allow " + call +
             " here. Allow the call; to test this in Docker, use --security-opt seccomp=unconfined.";
    default:
      return advice_on_memory(bytes);
  }
}

}  // namespace

bool is_shortage(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EFBIG:
      return true;
    default:
      return is_denial(error);
  }
}

std::string describe_shortage(const std::string& call, const std::string& purpose, int error, std::size_t bytes) {
  return "[smdp] " + call + " for " + purpose + " failed: " + std::strerror(error) + ". " + advice(call, error, bytes);
}

ShortageError shortage(const std::string& call, const std::string& purpose, int error, std::size_t bytes) {
  return ShortageError(describe_shortage(call, purpose, error, bytes), is_denial(error));
}

void throw_if_short(const std::string& call, const std::string& purpose) {
  const int error = errno;
  if (is_shortage(error)) throw shortage(call, purpose, error);
}

}  // namespace smdp
