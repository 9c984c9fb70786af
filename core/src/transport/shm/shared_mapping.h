// Memory that several processes map: a memfd, which has no name and ends with its last user.
#pragma once

#include <cstddef>

#include "common/file_descriptor.h"

namespace smdp {

class SharedMapping {
 public:
  // kLazily: a page takes memory once it is touched. kAtOnce: all pages exist from the start, so that a shortage is an
  // error of the constructor and never a signal later.
  enum class Pages { kLazily, kAtOnce };

  // The first constructor creates the memfd, filled with zeros; the second maps one that another process created.
  // purpose: for messages; a literal. Both throw ShortageError.
  SharedMapping(std::size_t bytes, const char* purpose, Pages pages);
  SharedMapping(FileDescriptor memfd, std::size_t bytes, const char* purpose);
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  int descriptor() const { return memfd_.get(); }
  // Called once all ranks have it, because mapped memory needs no descriptor.
  void close_descriptor() { memfd_ = FileDescriptor(); }

 private:
  void map(const char* purpose);

  FileDescriptor memfd_;
  const std::size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace smdp
