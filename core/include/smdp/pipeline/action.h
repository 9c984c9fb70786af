// What a rank of a pipeline does: one entry of a row of the schedule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "smdp/export.h"

namespace smdp::pipeline {

// In brackets: the text in a table, as torch.distributed.pipelining writes it. The last four are smdp's own.
enum class ActionKind : std::uint8_t {
  kForward,         // [F]
  kBackwardInput,   // [I] gradient of the stage's input
  kBackwardWeight,  // [W] gradient of its weights, after I
  kBackward,        // [B] both
  kSendForward,     // [SEND_F] the stage's output to a later stage
  kRecvForward,     // [RECV_F] its input from an earlier stage
  kSendBackward,    // [SEND_B] the gradient of its input to an earlier stage
  kRecvBackward,    // [RECV_B] the gradient of its output from a later stage
  kUnshard,         // [UNSHARD] all-gather the stage's parameters
  kReshard,         // [RESHARD] drop them again
  kReduceGrad,      // [REDUCE_GRAD] reduce the stage's gradients over its replicas
  kOverlap,         // [OVERLAP_F_B] a forward and a backward that run as one
  kOffload,         // [OFFLOAD] move a microbatch's activations to the host
  kReload,          // [RELOAD] move them back
  kReduceTied,      // [REDUCE_TIED] sum the gradient of a tied weight over the stages that hold it
  kReduceNorm,      // [REDUCE_NORM] sum the squares of all gradients over all ranks, for clipping; has no stage
};

// Fields that do not apply are -1.
struct Action {
  ActionKind kind = ActionKind::kForward;
  ActionKind second_kind = ActionKind::kBackward;  // kOverlap: I or B, the backward; stage, microbatch: the forward
  std::int16_t payload = -1;                       // send and receive: what travels, an index of Schedule::payloads
  int stage = -1;                                  // virtual stage
  int microbatch = -1;
  int other_stage = -1;       // send and receive: at the other end; kOverlap: of the backward; kReduceTied: the group
  int other_microbatch = -1;  // kOverlap: of the backward
  int peer = -1;              // send and receive: rank at the other end

  bool operator==(const Action&) const = default;
};

inline bool is_send(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }
inline bool is_receive(ActionKind kind) {
  return kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
}
inline bool is_transfer(ActionKind kind) { return is_send(kind) || is_receive(kind); }
inline bool is_compute(ActionKind kind) { return kind <= ActionKind::kBackward || kind == ActionKind::kOverlap; }
// Returns whether the action is I or B, which the earlier stages wait for.
inline bool is_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackwardInput || kind == ActionKind::kBackward;
}

// Returns whether ranks of one pipeline enter the action together: the members of a tied group, or all ranks.
inline bool is_joint(ActionKind kind) { return kind == ActionKind::kReduceTied || kind == ActionKind::kReduceNorm; }

// Returns the group of a joint action: the tied group, or kNormGroup.
inline constexpr int kNormGroup = -1;
inline int group_of(const Action& joint) {
  return joint.kind == ActionKind::kReduceNorm ? kNormGroup : joint.other_stage;
}

// Returns whether the action belongs to one microbatch; kOverlap has two.
inline bool has_microbatch(ActionKind kind) {
  return kind <= ActionKind::kRecvBackward || kind == ActionKind::kOffload || kind == ActionKind::kReload;
}

// Converts an index: ranks, stages and microbatches are int, positions in containers are not.
inline std::size_t at(int value) { return static_cast<std::size_t>(value); }

// Return the two halves of kOverlap.
inline Action forward_of(const Action& pair) {
  return {.kind = ActionKind::kForward, .stage = pair.stage, .microbatch = pair.microbatch};
}
inline Action backward_of(const Action& pair) {
  return {.kind = pair.second_kind, .stage = pair.other_stage, .microbatch = pair.other_microbatch};
}

// Calls `visit` with the action, or with both halves of kOverlap, the forward first.
template <typename Visit>
void for_each_part(const Action& action, Visit&& visit) {
  if (action.kind == ActionKind::kOverlap) {
    visit(forward_of(action));
    visit(backward_of(action));
  } else {
    visit(action);
  }
}

SMDP_API std::string_view name_of(ActionKind kind);

// Returns the action as in torch's CSV: 2F0, 1UNSHARD, (0F5;3B1)OVERLAP_F_B, REDUCE_NORM. A transfer that skips stages
// names the other stage: 0SEND_F1>3.
SMDP_API std::string to_text(const Action& action);

// Parses what to_text() writes; peer and payload stay -1. Throws InvalidArgument.
SMDP_API Action parse_action(std::string_view text);

}  // namespace smdp::pipeline
