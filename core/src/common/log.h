// Log messages of the core: lines on standard error that begin with "[smdp] ". Never on stdout.
#pragma once

#include <string>

namespace smdp {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// Sets the level above which messages are dropped. Default: kWarning.
void set_log_level(LogLevel level);
// Returns whether the level is logged; call it first if making the text is expensive.
bool is_logged(LogLevel level);
// Any thread.
void log(LogLevel level, const std::string& text);

}  // namespace smdp
