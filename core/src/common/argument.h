// What an argument may be; the error names it, its value and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "smdp/error.h"

namespace smdp {

// Bytes of the UTF-8 character at the front of text; 0 if there is none, but a byte that begins no character.
inline std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return 1;
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, halves of surrogate pairs, and what lies beyond Unicode.
  if ((byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F)) return 0;
  if ((byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F)) return 0;
  return length;
}

// Text of unknown origin for a message: at most `most` bytes of it, cut before a character, and '?' for each byte that
// is none or a control character. So the message is UTF-8 on one line, and no NUL ends it, whatever the text.
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

// A number for a message: small ones keep their digits, large ones have no row of zeros.
inline std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.12g", value);
  return text;
}

[[noreturn]] inline void refuse(const std::string& name, const std::string& value, const std::string& allowed) {
  throw InvalidArgument("[smdp] " + name + " = " + value + " is not valid; allowed: " + allowed);
}

// Far above every model and cluster; products of three, as double, stay far below the largest.
inline constexpr std::int64_t kLargestCount = std::int64_t{1} << 40;

// `why`: what the range depends on, e.g. " with 4 stages".
inline void check_count(const std::string& name, std::int64_t value, std::int64_t smallest,
                        std::int64_t largest = kLargestCount, const std::string& why = "") {
  if (value >= smallest && value <= largest) return;
  refuse(name, std::to_string(value),
         "an integer from " + std::to_string(smallest) + " to " + std::to_string(largest) + why);
}

// Neither NaN nor infinite.
inline void check_amount(const std::string& name, double value, double largest = 1e18) {
  if (value >= 0 && value <= largest) return;
  refuse(name, shown(value), "a number from 0 to " + shown(largest));
}

}  // namespace smdp
