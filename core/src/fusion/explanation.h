// Describes the fusion buffers of a gradient reducer: which ones exist, how they are cut between hosts, and why.
#pragma once

#include <cstddef>
#include <string>

#include "collectives/planner.h"
#include "cost/exchange_cost.h"
#include "cost/fusion_cost.h"
#include "fusion/layout.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// The facts that a layout was made from.
struct Reasons {
  Compression compression = Compression::kNone;
  std::size_t cap = 0;  // bytes of a buffer, as set by the user
  std::size_t hosts = 1;
  std::size_t lanes = 1;  // ranks of every host that exchange data
  std::size_t ranks = 1;
  Algorithm algorithm = Algorithm::kDirect;  // between hosts, for data that is not encoded
  cost::Measured measured;
  cost::FusionSizes sizes{};
  cost::ExchangeSizes exchange;
};

// Returns whether the loss of this compression depends on where buffers end, so that measurements must not affect it.
bool has_fixed_buffers(Compression compression);

// Returns several lines, each with a line end.
std::string explain(const Layout& layout, const Reasons& reasons);

}  // namespace smdp
