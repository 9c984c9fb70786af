// Proves that a schedule can be executed, or finds where it cannot.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// In the order in which they run: later checks rely on earlier ones.
enum class Check {
  kEmptyStages,   // every virtual stage takes part, even one without layers
  kCompleteness,  // every required computation and reduction occurs exactly once
  kPlacement,     // every stage is on its rank; parameters are unsharded when used
  kLocalOrder,  // F before I before W before reductions, receive before use before send, reload before backward, weight
                // gradients of a stage in ascending order of microbatches
  kAcyclicity,  // computations of all ranks have a common order
  kMatching,    // sends and receives of a channel are the same, in the same order
  kDeadlock,    // no rank waits forever, however much the transport buffers
  kMemoryCap,   // bytes and microbatches in flight
  kCollectiveOrder,  // members enter collectives in one order: data parallel, tied, norm
  kAlternation,      // nothing is left over at the end of a step
};

SMDP_API std::string_view name_of(Check check);
SMDP_API std::vector<Check> all_checks();

// Parses what name_of() returns. Throws InvalidArgument.
SMDP_API Check parse_check(std::string_view name);

enum class Transport {
  kRendezvous,    // a send ends when its receive begins: no buffers
  kBuffered,      // `buffers` messages per direction between two ranks
  kSingleStream,  // transfers between two ranks run one after the other, in the order each side issued them (NCCL)
};

// Parses "rendezvous", "buffered" or "single_stream". Throws InvalidArgument.
SMDP_API Transport parse_transport(std::string_view name);

struct VerifyOptions {
  std::vector<Check> checks;  // empty: all
  std::vector<Transport> transports{Transport::kRendezvous, Transport::kBuffered, Transport::kSingleStream};
  int buffers = 1;
  std::optional<Costs> costs;        // for the cap; default: 1 byte per microbatch and virtual stage
  std::optional<double> memory_cap;  // bytes per rank
  int active_microbatches = 0;       // maximum in flight on a rank; 0: no limit
  std::vector<Schedule> replicas;    // data-parallel replicas, whose collectives must be the same
  std::vector<Schedule> alternates;  // schedules that run on the same ranks between steps of this one, e.g. evaluation
};

struct Violation {
  Check check;
  int rank = -1;  // -1 where it does not apply
  int stage = -1;
  int microbatch = -1;
  std::string action;   // as text; empty if an action is missing
  std::string message;  // names all of these, the rule and the surrounding rows
};

// Returns the first violation, or nothing. Rows with any content are accepted; throws InvalidArgument for an invalid
// shape or option.
SMDP_API std::optional<Violation> verify(const Schedule& schedule, const VerifyOptions& options = {});

}  // namespace smdp::pipeline
