#include "pipeline/payload.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <vector>

#include "common/argument.h"

namespace smdp::pipeline {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

struct Tensor {
  std::string_view dtype;
  std::string_view shape;  // between the brackets
};

Tensor tensor_of(std::string_view text) {
  const std::size_t bracket = std::min(text.find('['), text.size());
  const std::string_view rest = text.substr(bracket);
  return {text.substr(0, bracket), rest.size() < 2 ? rest : rest.substr(1, rest.size() - 2)};
}

bool is_dtype(std::string_view text) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_inside = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && is_letter(text.front()) && std::all_of(text.begin(), text.end(), is_inside);
}

// Accepts no leading zeros, so that equal shapes are equal texts.
bool is_size(std::string_view text) {
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  return error == std::errc() && end == text.data() + text.size() && size >= 0 && std::to_string(size) == text;
}

bool is_tensor(std::string_view text) {
  const auto [dtype, shape] = tensor_of(text);
  if (!is_dtype(dtype) || text.size() < dtype.size() + 2 || text.back() != ']') return false;
  const std::vector<std::string_view> sizes = split(shape, 'x');
  return shape.empty() || std::all_of(sizes.begin(), sizes.end(), is_size);
}

}  // namespace

void check_payload(std::string_view text) {
  const std::vector<std::string_view> tensors = split(text, '+');
  if (std::all_of(tensors.begin(), tensors.end(), is_tensor)) return;
  refuse("payload", "'" + shown(text) + "'",
         "the dtype and shape of each tensor, joined by +, e.g. float32[8x512x768]+int64[8x512]");
}

std::string difference_of(std::string_view sent, std::string_view received) {
  if (sent.empty()) return "the payload of the send is unknown";
  if (received.empty()) return "the payload of the receive is unknown";
  const std::vector<std::string_view> ours = split(sent, '+');
  const std::vector<std::string_view> theirs = split(received, '+');
  if (ours.size() != theirs.size()) {
    return std::to_string(ours.size()) + " tensors are sent and " + std::to_string(theirs.size()) + " received";
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const Tensor our = tensor_of(ours[i]);
    const Tensor their = tensor_of(theirs[i]);
    const std::string place = ours.size() == 1 ? "" : " of tensor " + std::to_string(i);
    if (our.dtype != their.dtype) return "the dtypes" + place + " differ";
    if (our.shape != their.shape) return "the shapes" + place + " differ";
  }
  return "";
}

PayloadTable::PayloadTable(Schedule& schedule) : schedule_(schedule) {
  for (std::size_t i = 0; i < schedule.payloads.size(); ++i) {
    places_.emplace(schedule.payloads[i], static_cast<std::int16_t>(i));
  }
}

std::int16_t PayloadTable::place_of(std::string_view text) {
  if (const auto found = places_.find(text); found != places_.end()) return found->second;
  check_payload(text);
  if (schedule_.payloads.size() >= static_cast<std::size_t>(kMaxPayloads)) {
    refuse("payloads", "more than " + std::to_string(kMaxPayloads) + " different ones", "at most that many");
  }
  const auto place = static_cast<std::int16_t>(schedule_.payloads.size());
  schedule_.payloads.emplace_back(text);
  places_.emplace(text, place);
  return place;
}

}  // namespace smdp::pipeline
