// Exceptions of smdp. Messages name the rank, its host, the values on both sides and the fix.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "smdp/export.h"

namespace smdp {

// The kind of an error, as an ABORT message carries it between ranks.
enum class ErrorKind : unsigned char {
  kInternal = 0,
  kTimeout = 1,
  kPeerLost = 2,
  kMismatch = 3,
  kConfig = 4,
  kClosed = 5,
};

// Base class of all run-time failures; smdp.SmdpError in Python.
class SMDP_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, ErrorKind kind = ErrorKind::kInternal)
      : std::runtime_error(what), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// A deadline passed. The message names the ranks that this rank waited for.
class SMDP_API TimeoutError : public Error {
 public:
  explicit TimeoutError(const std::string& what) : Error(what, ErrorKind::kTimeout) {}
};

// A process or host of the group died or left.
class SMDP_API PeerLostError : public Error {
 public:
  explicit PeerLostError(const std::string& what, std::vector<int> ranks = {})
      : Error(what, ErrorKind::kPeerLost), ranks_(std::move(ranks)) {}

  // Returns the ranks (within the group) that are gone.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// Ranks called different operations, or the same operation with different shapes, dtypes or roots.
class SMDP_API MismatchError : public Error {
 public:
  explicit MismatchError(const std::string& what) : Error(what, ErrorKind::kMismatch) {}
};

// An environment variable, an option or a value from the rendezvous is wrong.
class SMDP_API ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& what) : Error(what, ErrorKind::kConfig) {}
};

// The group was shut down, or this process was forked from the one that made the group.
class SMDP_API ClosedError : public Error {
 public:
  explicit ClosedError(const std::string& what) : Error(what, ErrorKind::kClosed) {}
};

// An argument is wrong. Thrown before anything is sent; ValueError in Python.
class SMDP_API InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace smdp
