#include "common/log.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace smdp {
namespace {

struct Sink {
  std::mutex mutex;
  std::function<void(LogLevel, const std::string&)> function;  // guarded by mutex
  std::atomic<LogLevel> level{LogLevel::kWarning};
};

Sink& sink() {
  static Sink& instance = *new Sink;
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) { sink().level.store(level); }

void set_log_sink(std::function<void(LogLevel, const std::string&)> function) {
  const std::lock_guard lock(sink().mutex);
  sink().function = std::move(function);
}

void log(LogLevel level, const std::string& text) {
  if (level > sink().level.load()) return;
  const std::lock_guard lock(sink().mutex);
  if (sink().function) {
    sink().function(level, text);
    return;
  }
  const std::string line = "[smdp] " + text + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace smdp
