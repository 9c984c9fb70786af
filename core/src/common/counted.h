// Numbers with their nouns, for messages.
#pragma once

#include <cstdint>
#include <string>

namespace smdp {

// Returns, for example, "1 rank", "2 ranks" or "2 microbatches".
inline std::string counted(std::uint64_t number, const std::string& noun) {
  const char* ending = number == 1 ? "" : noun.ends_with("ch") ? "es" : "s";
  return std::to_string(number) + " " + noun + ending;
}

}  // namespace smdp
