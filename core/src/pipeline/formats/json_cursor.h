// Reads JSON text from front to back, for documents of known structure. It never recurses, so no text can exhaust the
// stack.
#pragma once

#include <string>
#include <string_view>

namespace smdp::pipeline {

class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : text_(text) {}

  // `what` names the field in errors. All functions throw InvalidArgument if the text has something else.
  std::string string(std::string_view what);
  int integer(std::string_view what);
  bool boolean(std::string_view what);
  void end(std::string_view what);

  // Begins an array or object.
  void open(char bracket, std::string_view what);

  // Called before each element: returns false, and moves past the bracket, if there are no more.
  bool next(char bracket, std::string_view what);

  // Returns the key of a member and moves past its colon.
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
