// Proves that a schedule can be executed, or says where it cannot.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "smdp/export.h"
#include "smdp/pipeline/costs.h"
#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// In the order in which they run: later ones rely on earlier ones.
enum class Check {
  kEmptyStages,      // every virtual stage takes part, also one without layers
  kCompleteness,     // computations and reductions: each that there must be, once
  kPlacement,        // every stage on its rank; parameters whole when used
  kLocalOrder,       // F before I before W before reductions, receive before use before send, reload before backward,
                     // weight gradients of a stage in ascending order of microbatches
  kAcyclicity,       // computations over all ranks can be put in one order
  kMatching,         // sends and receives of a channel are the same, in the same order
  kDeadlock,         // no rank waits for ever, whatever the transport buffers
  kMemoryCap,        // bytes and microbatches in flight
  kCollectiveOrder,  // members enter collectives in one order: data parallel, tied, norm
  kAlternation,      // nothing is left over when a step ends
};

SMDP_API std::string_view name_of(Check check);
SMDP_API std::vector<Check> all_checks();

// The reverse of name_of. Throws InvalidArgument.
SMDP_API Check parse_check(std::string_view name);

enum class Transport {
  kRendezvous,    // a send ends when its receive begins: no buffers
  kBuffered,      // `buffers` messages per direction of a pair
  kSingleStream,  // transfers of a pair of ranks run one after the other, as each side issued them (NCCL)
};

// rendezvous, buffered, single_stream. Throws InvalidArgument.
SMDP_API Transport parse_transport(std::string_view name);

struct VerifyOptions {
  std::vector<Check> checks;  // empty: all
  std::vector<Transport> transports{Transport::kRendezvous, Transport::kBuffered, Transport::kSingleStream};
  int buffers = 1;
  std::optional<Costs> costs;        // for the cap; default: 1 byte per microbatch and virtual stage
  std::optional<double> memory_cap;  // bytes per rank
  int active_microbatches = 0;       // most of one rank in flight; 0: any
  std::vector<Schedule> replicas;    // data parallel replicas: their collectives must be the same
  std::vector<Schedule> alternates;  // schedules that run on the same ranks between steps of this one, e.g. evaluation
};

struct Violation {
  Check check;
  int rank = -1;  // -1 where it says nothing
  int stage = -1;
  int microbatch = -1;
  std::string action;   // as text; empty if one is missing
  std::string message;  // names all of these, the rule, and the rows around
};

// The first violation, or nothing. Never throws for what the rows hold; InvalidArgument for a wrong shape or option.
SMDP_API std::optional<Violation> verify(const Schedule& schedule, const VerifyOptions& options = {});

}  // namespace smdp::pipeline
