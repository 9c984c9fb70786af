// A reader that goes through JSON text from front to back, for documents whose shape is known: it never recurses, so no
// text can exhaust the stack.
#pragma once

#include <string>
#include <string_view>

namespace smdp::pipeline {

class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : text_(text) {}

  // `what` names the field in errors. All throw InvalidArgument where the text has something else.
  std::string string(std::string_view what);
  int integer(std::string_view what);
  bool boolean(std::string_view what);
  void end(std::string_view what);

  // Begins an array or object.
  void open(char bracket, std::string_view what);

  // Before each element: false, and past the bracket, where there are no more.
  bool next(char bracket, std::string_view what);

  // The key of a member, past its colon.
  std::string key();

  [[noreturn]] void refuse(std::string_view what, const std::string& allowed) const;

 private:
  void skip_space();
  bool take(char c);
  unsigned hex4(std::string_view what);

  std::string_view text_;
  std::size_t at_ = 0;
  bool is_first_ = false;  // of the array or object just opened
};

}  // namespace smdp::pipeline
