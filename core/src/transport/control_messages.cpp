#include "transport/control_messages.h"

#include <algorithm>
#include <vector>

namespace smdp {
namespace {

// Upper limit of a list of waits in a message; one cycle is enough.
constexpr std::size_t kMaxWaits = 64;

template <class T>
void put(std::string& message, T value) {
  message.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_list(std::string& message, const std::vector<std::uint64_t>& list) {
  const auto count = static_cast<std::uint32_t>(std::min(list.size(), kMaxWaits));
  put(message, count);
  for (std::uint32_t i = 0; i < count; ++i) put(message, list[i]);
}

std::vector<std::uint64_t> get_list(ControlReader& reader) {
  std::vector<std::uint64_t> list;
  for (auto count = reader.get<std::uint32_t>(); count > 0 && !reader.is_over(); --count) {
    list.push_back(reader.get<std::uint64_t>());
  }
  return list;
}

std::string start(ControlType type, int origin) {
  std::string message;
  put(message, type);
  put(message, static_cast<std::int32_t>(origin));
  return message;
}

}  // namespace

std::string framed(const std::string& message) {
  std::string frame;
  put(frame, static_cast<std::uint32_t>(message.size()));
  return frame + message;
}

std::string abort_message(int origin, const Failure& failure) {
  std::string message = start(ControlType::kAbort, origin);
  put(message, failure.kind);
  put(message, static_cast<std::uint8_t>(failure.is_deadlock));
  put(message, static_cast<std::uint32_t>(failure.lost.size()));
  for (const int rank : failure.lost) put(message, static_cast<std::int32_t>(rank));
  return message + failure.text.substr(0, kMaxControlText);
}

Failure read_failure(ControlReader& reader, int size) {
  Failure failure;
  failure.kind = reader.get<ErrorKind>();
  failure.is_deadlock = reader.get<std::uint8_t>() != 0;
  const auto count = std::min<std::uint32_t>(reader.get<std::uint32_t>(), static_cast<std::uint32_t>(size));
  for (std::uint32_t i = 0; i < count; ++i) failure.lost.push_back(reader.get<std::int32_t>());
  failure.text = reader.rest();
  return failure;
}

std::string refused_message(int origin, std::uint64_t sequence, const std::string& text) {
  std::string message = start(ControlType::kRefused, origin);
  put(message, sequence);
  return message + text.substr(0, kMaxControlText);
}

std::string left_message(int origin, const std::string& reason) {
  return start(ControlType::kLeft, origin) + reason.substr(0, kMaxControlText);
}

std::string ping_message(std::uint64_t number) {
  std::string message = start(ControlType::kPing, 0);
  put(message, number);
  return message;
}

std::string pong_message(int origin, std::uint64_t number, const Control::Status& status) {
  std::string message = start(ControlType::kPong, origin);
  put(message, number);
  put(message, status.last);
  put(message, static_cast<std::uint8_t>(status.busy));
  put(message, static_cast<std::uint8_t>(status.has_given_up));
  put(message, status.called);
  put(message, status.wait);
  put(message, status.other_wait.wait);
  put(message, static_cast<std::uint8_t>(status.other_wait.is_for_all));
  put(message, status.other_wait.meeting);
  put_list(message, status.other_wait.made);
  put(message, static_cast<std::uint8_t>(status.other_wait.replaces_this));
  put_list(message, status.other_wait.awaited);
  return message + status.other_wait.what.substr(0, kMaxControlText);
}

Control::Status read_status(ControlReader& reader) {
  Control::Status status;
  status.last = reader.get<Fingerprint>();
  status.busy = reader.get<std::uint8_t>() != 0;
  status.has_given_up = reader.get<std::uint8_t>() != 0;
  status.called = reader.get<std::uint64_t>();
  status.wait = reader.get<std::uint64_t>();
  status.other_wait.wait = reader.get<std::uint64_t>();
  status.other_wait.is_for_all = reader.get<std::uint8_t>() != 0;
  status.other_wait.meeting = reader.get<std::uint64_t>();
  status.other_wait.made = get_list(reader);
  status.other_wait.replaces_this = reader.get<std::uint8_t>() != 0;
  status.other_wait.awaited = get_list(reader);
  status.other_wait.what = reader.rest();
  return status;
}

std::string inquire_message(int origin, std::uint64_t sequence) {
  std::string message = start(ControlType::kInquire, origin);
  put(message, sequence);
  return message;
}

std::string verdict_message(const Control::Verdict& verdict) {
  std::string message = start(ControlType::kVerdict, 0);
  put(message, verdict.sequence);
  put_list(message, verdict.awaited);
  return message + verdict.text.substr(0, kMaxControlText);
}

Control::Verdict read_verdict(ControlReader& reader) {
  Control::Verdict verdict;
  verdict.sequence = reader.get<std::uint64_t>();
  verdict.awaited = get_list(reader);
  verdict.text = reader.rest();
  return verdict;
}

}  // namespace smdp
