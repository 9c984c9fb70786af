#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

#include "collectives/planner.h"
#include "common/log.h"
#include "reduce/reduce.h"
#include "smdp/error.h"
#include "smdp/group.h"

namespace smdp {
namespace {

double number(const std::string& name, const std::string& value, double least, double most) {
  double parsed = 0;
  const char* const last = value.data() + value.size();
  // Always with a decimal point, whatever the locale: Python writes these values.
  const auto [end, error] = std::from_chars(value.data(), last, parsed);
  if (error != std::errc() || end != last || !(parsed >= least) || !(parsed <= most)) {
    std::string upper;
    for (const char c : name) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    throw ConfigError("[smdp] SMDP_" + upper + " is '" + value + "'; allowed: a number from " +
                      std::to_string(static_cast<long long>(least)) + " to " +
                      std::to_string(static_cast<long long>(most)) + ".");
  }
  return parsed;
}

std::chrono::milliseconds seconds(const std::string& name, const std::string& value) {
  return std::chrono::milliseconds(std::llround(1000 * number(name, value, 0, 10'000'000)));
}

LogLevel log_level(const std::string& value) {
  if (value == "error") return LogLevel::kError;
  if (value == "warning") return LogLevel::kWarning;
  if (value == "info") return LogLevel::kInfo;
  if (value == "debug") return LogLevel::kDebug;
  throw ConfigError("[smdp] SMDP_LOG_LEVEL is '" + value + "'; allowed: error, warning, info, debug.");
}

}  // namespace

GroupOptions GroupOptions::from(const std::map<std::string, std::string>& values) {
  GroupOptions options;
  for (const auto& [name, value] : values) {
    if (name == "timeout") {
      options.timeout = seconds(name, value);
    } else if (name == "init_timeout") {
      options.init_timeout = seconds(name, value);
    } else if (name == "stall_time") {
      options.stall_time = seconds(name, value);
    } else if (name == "trace") {
      options.trace = value;
    } else if (name == "secret") {
      options.secret = value;
    } else if (name == "master_addr") {
      options.master_addr = value;
    } else if (name == "socket_ifname") {
      options.socket_ifname = value;
    } else if (name == "host_id") {
      options.host_id = value;
    } else if (name == "algorithm") {
      parse_algorithm(value);
      options.algorithm = value;
    } else if (name == "deterministic") {
      options.strict = value == "strict";
    } else if (name == "streams") {
      options.streams = static_cast<int>(number(name, value, 1, 64));
    } else if (name == "threads") {
      options.threads = static_cast<int>(number(name, value, 1, 64));
    } else if (name == "world_rank") {
      options.world_rank = static_cast<int>(number(name, value, 0, 2'147'483'647));
    } else if (name == "world_size") {
      options.world_size = static_cast<int>(number(name, value, 1, 2'147'483'647));
    } else if (name == "chunk_bytes") {
      options.chunk_bytes = static_cast<std::size_t>(number(name, value, 16'384, 67'108'864));
    } else if (name == "force_kernel") {
      if (!value.empty()) force_kernel(value);
    } else if (name == "log_level") {
      set_log_level(log_level(value));
    }
  }
  return options;
}

}  // namespace smdp
