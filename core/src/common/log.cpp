#include "common/log.h"

#include <unistd.h>

#include <atomic>

namespace smdp {
namespace {

std::atomic<LogLevel> max_level{LogLevel::kWarning};

}  // namespace

void set_log_level(LogLevel level) { max_level.store(level); }

bool is_logged(LogLevel level) { return level <= max_level.load(std::memory_order_relaxed); }

void log(LogLevel level, const std::string& text) {
  if (!is_logged(level)) return;
  // A single write keeps the lines of several threads and processes whole.
  const std::string line = "[smdp] " + text + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace smdp
