// Checks of arguments. The error names the argument, its value and the valid values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "smdp/error.h"

namespace smdp {

// Returns the bytes of the UTF-8 character at the front of `text`; 0 if its first byte does not begin one.
inline std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points beyond Unicode.
  if ((byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F)) return 0;
  if ((byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

// Returns text of unknown origin in a form that is safe in a message: at most `most` bytes, cut between characters,
// with '?' for each invalid byte or control character. The message is thereby valid UTF-8 on one line without a NUL.
inline std::string shown(std::string_view text, std::size_t most = 60) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::size_t taken = length == 0 ? 1 : length;
    if (result.size() + taken > most) break;
    const bool is_control = static_cast<unsigned char>(text.front()) < 0x20 || text.front() == 0x7F;
    result += length == 0 || is_control ? std::string_view("?") : text.substr(0, length);
    text.remove_prefix(taken);
  }
  return result;
}

// Returns a number for a message: small ones with all digits, large ones without a row of zeros.
inline std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.12g", value);
  return text;
}

[[noreturn]] inline void refuse(const std::string& name, const std::string& value, const std::string& allowed) {
  throw InvalidArgument("[smdp] " + name + " = " + value + " is not valid; allowed: " + allowed);
}

// Far above every model and cluster. Products of three, as double, stay far below the largest double.
inline constexpr std::int64_t kLargestCount = std::int64_t{1} << 40;

// `why`: what the range depends on, e.g. " with 4 stages".
inline void check_count(const std::string& name, std::int64_t value, std::int64_t smallest,
                        std::int64_t largest = kLargestCount, const std::string& why = "") {
  if (value >= smallest && value <= largest) return;
  refuse(name, std::to_string(value),
         "an integer from " + std::to_string(smallest) + " to " + std::to_string(largest) + why);
}

// Rejects NaN and infinity as well.
inline void check_amount(const std::string& name, double value, double largest = 1e18) {
  if (value >= 0 && value <= largest) return;
  refuse(name, shown(value), "a number from 0 to " + shown(largest));
}

}  // namespace smdp
