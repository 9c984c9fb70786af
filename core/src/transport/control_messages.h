// Encoding of the messages on control connections: a type, the rank that sent it, and the type's data. All hosts of a
// job have the same byte order (checked at rendezvous).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "common/failure.h"
#include "transport/control.h"

namespace smdp {

enum class ControlType : char {
  kAbort = 'A',
  kLeft = 'L',
  kPing = 'P',
  kPong = 'Q',
  kInquire = 'I',
  kVerdict = 'V',
  kRefused = 'R'
};

inline constexpr std::size_t kMaxControlText = 16'384;
inline constexpr std::size_t kMaxControlMessage = kMaxControlText + 65'536;

// Reads a message from its beginning. If the message is too short, it returns zeros and never reads outside of it.
class ControlReader {
 public:
  explicit ControlReader(const std::string& message) : message_(message) {}
  template <class T>
  T get() {
    T value{};
    if (message_.size() - position_ >= sizeof value) {
      std::memcpy(&value, message_.data() + position_, sizeof value);
      position_ += sizeof value;
    } else {
      position_ = message_.size();
    }
    return value;
  }
  std::string rest() { return message_.substr(position_); }
  bool is_over() const { return position_ == message_.size(); }

 private:
  const std::string& message_;
  std::size_t position_ = 0;
};

// Returns the message preceded by its length, as it is sent over a connection.
std::string framed(const std::string& message);

std::string abort_message(int origin, const Failure& failure);
std::string refused_message(int origin, std::uint64_t sequence, const std::string& text);
std::string left_message(int origin, const std::string& reason);
std::string ping_message(std::uint64_t number);
std::string pong_message(int origin, std::uint64_t number, const Control::Status& status);
std::string inquire_message(int origin, std::uint64_t sequence);
std::string verdict_message(const Control::Verdict& verdict);

// Read what follows the origin or, in a pong, the number. size: number of ranks in the group.
Failure read_failure(ControlReader& reader, int size);
Control::Status read_status(ControlReader& reader);
Control::Verdict read_verdict(ControlReader& reader);

}  // namespace smdp
