#include "smdp/pipeline/action.h"

#include <array>
#include <charconv>
#include <optional>

#include "common/argument.h"
#include "pipeline/trim.h"

namespace smdp::pipeline {
namespace {

constexpr std::array<std::string_view, 16> kNames{
    "F",       "I",       "W",           "B",           "SEND_F",  "RECV_F", "SEND_B",      "RECV_B",
    "UNSHARD", "RESHARD", "REDUCE_GRAD", "OVERLAP_F_B", "OFFLOAD", "RELOAD", "REDUCE_TIED", "REDUCE_NORM",
};

// Small enough that a stage's neighbor is also a valid number.
constexpr int kLargest = 1 << 30;

std::optional<ActionKind> kind_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ActionKind>(i);
  }
  return std::nullopt;
}

[[noreturn]] void refuse_action(std::string_view text, const char* why) {
  std::string names;
  for (const std::string_view name : kNames) names += (names.empty() ? "" : ", ") + std::string(name);
  // The text may be a whole file that a user pasted.
  throw InvalidArgument(
      "[smdp] '" + shown(text) + "' is not an action: " + why +
      ". Write stage, kind and microbatch, e.g. 2F0, 1UNSHARD or (0F5;3B1)OVERLAP_F_B; kinds: " + names + ".");
}

// Removes a number from the front of `text` and returns it; -1 if there is none.
int take_number(std::string_view& text, std::string_view whole) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range || value > kLargest) refuse_action(whole, "a number in it is too large");
  if (error != std::errc() || value < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

Action parse_single(std::string_view text, std::string_view whole) {
  text = trim(text);
  Action action;
  if (text == name_of(ActionKind::kReduceNorm)) {
    action.kind = ActionKind::kReduceNorm;
    return action;
  }
  action.stage = take_number(text, whole);
  if (action.stage < 0) refuse_action(whole, "it does not begin with a stage");
  std::size_t length = 0;
  while (length < text.size() && (text[length] == '_' || (text[length] >= 'A' && text[length] <= 'Z'))) ++length;
  const std::optional<ActionKind> kind = kind_named(text.substr(0, length));
  if (!kind || *kind == ActionKind::kOverlap) refuse_action(whole, "its kind is unknown");
  action.kind = *kind;
  if (action.kind == ActionKind::kReduceNorm) refuse_action(whole, "its kind has no stage");
  text.remove_prefix(length);
  const int number = take_number(text, whole);
  if (action.kind == ActionKind::kReduceTied) {
    if (number < 0) refuse_action(whole, "it has no group number");
    action.other_stage = number;
  } else if (has_microbatch(action.kind)) {
    if (number < 0) refuse_action(whole, "it has no microbatch");
    action.microbatch = number;
  } else if (number >= 0) {
    refuse_action(whole, "its kind has no microbatch");
  }
  if (is_transfer(action.kind)) {
    const bool is_upwards = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvBackward;
    action.other_stage = action.stage + (is_upwards ? 1 : -1);
    if (!text.empty() && text.front() == '>') {
      text.remove_prefix(1);
      action.other_stage = take_number(text, whole);
      if (action.other_stage < 0) refuse_action(whole, "there is no stage after >");
    }
  }
  if (!text.empty()) refuse_action(whole, "there is text after it");
  return action;
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "?";
}

std::string to_text(const Action& action) {
  if (action.kind == ActionKind::kOverlap) {
    return "(" + to_text(forward_of(action)) + ";" + to_text(backward_of(action)) + ")OVERLAP_F_B";
  }
  if (action.kind == ActionKind::kReduceNorm) return std::string(name_of(action.kind));
  std::string text = std::to_string(action.stage);
  text += name_of(action.kind);
  if (action.kind == ActionKind::kReduceTied) return text + std::to_string(action.other_stage);
  if (action.microbatch >= 0) text += std::to_string(action.microbatch);
  if (is_transfer(action.kind)) {
    const bool is_upwards = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvBackward;
    if (action.other_stage != action.stage + (is_upwards ? 1 : -1)) text += ">" + std::to_string(action.other_stage);
  }
  return text;
}

Action parse_action(std::string_view text) {
  const std::string_view whole = trim(text);
  if (whole.empty() || whole.front() != '(') return parse_single(whole, whole);
  const std::size_t middle = whole.find(';');
  const std::size_t end = whole.find(')');
  if (end == std::string_view::npos || middle == std::string_view::npos || middle > end ||
      trim(whole.substr(end + 1)) != "OVERLAP_F_B") {
    refuse_action(whole, "a pair is (forward;backward)OVERLAP_F_B");
  }
  const Action forward = parse_single(whole.substr(1, middle - 1), whole);
  const Action backward = parse_single(whole.substr(middle + 1, end - middle - 1), whole);
  if (forward.kind != ActionKind::kForward || !is_input_gradient(backward.kind)) {
    refuse_action(whole, "a pair is an F followed by a B or an I");
  }
  return {.kind = ActionKind::kOverlap,
          .second_kind = backward.kind,
          .stage = forward.stage,
          .microbatch = forward.microbatch,
          .other_stage = backward.stage,
          .other_microbatch = backward.microbatch};
}

}  // namespace smdp::pipeline
