#include "pipeline/formats/json_cursor.h"

#include <algorithm>
#include <charconv>

#include "common/argument.h"

namespace smdp::pipeline {
namespace {

void append_utf8(std::string& text, unsigned code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | (code >> 6));
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | (code >> 12));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | (code >> 18));
    text += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

bool is_high_half(unsigned code) { return code >= 0xD800 && code <= 0xDBFF; }
bool is_low_half(unsigned code) { return code >= 0xDC00 && code <= 0xDFFF; }

}  // namespace

void JsonCursor::refuse(std::string_view what, const std::string& allowed) const {
  const std::string rest = shown(text_.substr(std::min(at_, text_.size())), 40);
  throw InvalidArgument("[smdp] JSON, character " + std::to_string(at_) + ", " + shown(what) + ": found '" + rest +
                        "'; allowed: " + allowed + ".");
}

void JsonCursor::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

bool JsonCursor::take(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

unsigned JsonCursor::hex4(std::string_view what) {
  unsigned code = 0;
  const std::string_view digits = text_.substr(std::min(at_, text_.size()), 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (error != std::errc() || digits.size() != 4 || end != digits.data() + 4) refuse(what, "four hexadecimal digits");
  at_ += 4;
  return code;
}

std::string JsonCursor::string(std::string_view what) {
  if (!take('"')) refuse(what, "a string");
  std::string value;
  while (at_ < text_.size() && text_[at_] != '"') {
    const char c = text_[at_++];
    if (c != '\\') {
      value += c;
      continue;
    }
    const char escaped = at_ < text_.size() ? text_[at_++] : '\0';
    switch (escaped) {
      case '"':
      case '\\':
      case '/':
        value += escaped;
        break;
      case 'b':
        value += '\b';
        break;
      case 'f':
        value += '\f';
        break;
      case 'n':
        value += '\n';
        break;
      case 'r':
        value += '\r';
        break;
      case 't':
        value += '\t';
        break;
      case 'u': {
        const unsigned code = hex4(what);
        if (is_high_half(code) && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          const unsigned low = hex4(what);
          if (is_low_half(low)) {
            append_utf8(value, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
            break;
          }
          at_ -= 6;
        }
        // A surrogate alone is not a character, and Python could not read it as text.
        append_utf8(value, is_high_half(code) || is_low_half(code) ? 0xFFFD : code);
        break;
      }
      default:
        refuse(what, "a JSON escape");
    }
  }
  if (at_ >= text_.size()) refuse(what, "a string with its closing quote");
  ++at_;
  return value;
}

int JsonCursor::integer(std::string_view what) {
  skip_space();
  int value = 0;
  const char* begin = text_.data() + std::min(at_, text_.size());
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  const std::string_view digits(begin, static_cast<std::size_t>(end - begin));
  const std::string_view unsigned_digits = digits.substr(digits.starts_with('-') ? 1 : 0);
  const bool has_zero = unsigned_digits.size() > 1 && unsigned_digits.front() == '0';
  if (error != std::errc() || has_zero) refuse(what, "an integer");
  at_ += static_cast<std::size_t>(end - begin);
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) refuse(what, "an integer");
  return value;
}

bool JsonCursor::boolean(std::string_view what) {
  skip_space();
  for (const std::string_view word : {"true", "false"}) {
    if (text_.substr(std::min(at_, text_.size()), word.size()) != word) continue;
    at_ += word.size();
    return word == "true";
  }
  refuse(what, "true or false");
}

void JsonCursor::open(char bracket, std::string_view what) {
  if (!take(bracket)) refuse(what, bracket == '{' ? "an object" : "an array");
  is_first_ = true;
}

bool JsonCursor::next(char bracket, std::string_view what) {
  const char closing = bracket == '{' ? '}' : ']';
  const bool is_first = is_first_;
  is_first_ = false;
  if (take(closing)) return false;
  if (!is_first && !take(',')) refuse(what, std::string("a comma or ") + closing);
  return true;
}

std::string JsonCursor::key() {
  std::string name = string("the name of a field");
  if (!take(':')) refuse(name, "a colon");
  return name;
}

void JsonCursor::end(std::string_view what) {
  skip_space();
  if (at_ < text_.size()) refuse(what, "nothing");
}

}  // namespace smdp::pipeline
