#include "common/failure.h"

namespace smdp {

Failure Failure::of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& e) {
    return {e.kind(), e.what(), e.ranks()};
  } catch (const Error& e) {
    return {e.kind(), e.what(), {}};
  } catch (const std::exception& e) {
    return {ErrorKind::kInternal, e.what(), {}};
  } catch (...) {
    return {ErrorKind::kInternal, "[smdp] unknown exception", {}};
  }
}

std::exception_ptr Failure::exception() const {
  switch (kind) {
    case ErrorKind::kTimeout:
      return std::make_exception_ptr(TimeoutError(text));
    case ErrorKind::kPeerLost:
      return std::make_exception_ptr(PeerLostError(text, lost));
    case ErrorKind::kMismatch:
      return std::make_exception_ptr(MismatchError(text));
    case ErrorKind::kConfig:
      return std::make_exception_ptr(ConfigError(text));
    case ErrorKind::kClosed:
      return std::make_exception_ptr(ClosedError(text));
    case ErrorKind::kInternal:
      break;
  }
  return std::make_exception_ptr(Error(text));
}

std::string without_tag(const std::string& text) {
  const std::string tag = "[smdp] ";
  return text.rfind(tag, 0) == 0 ? text.substr(tag.size()) : text;
}

std::string quoted(const std::string& group, const std::string& purpose) {
  return "'" + group + "'" + (purpose.empty() ? "" : " (" + purpose + ")");
}

std::string seconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(static_cast<double>(time.count()) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace smdp
