// Log messages of the core, through one sink that Python can redirect. Never stdout.
#pragma once

#include <functional>
#include <string>

namespace smdp {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// Default: kWarning. Messages above it are dropped.
void set_log_level(LogLevel level);
// Default: standard error, with "[smdp] " before the text. Called by one thread at a time.
void set_log_sink(std::function<void(LogLevel, const std::string&)> sink);
void log(LogLevel level, const std::string& text);

}  // namespace smdp
