// What a gradient reducer says of its fusion buffers: which there are, how they are cut between hosts, and why.
#pragma once

#include <cstddef>
#include <string>

#include "collectives/planner.h"
#include "cost/exchange_cost.h"
#include "cost/fusion_cost.h"
#include "fusion/layout.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

// What a layout was made from.
struct Reasons {
  Compression compression = Compression::kNone;
  std::size_t cap = 0;  // bytes of a buffer, as the user set it
  std::size_t hosts = 1;
  std::size_t lanes = 1;  // ranks of every host that exchange
  std::size_t ranks = 1;
  Algorithm algorithm = Algorithm::kDirect;  // between hosts, of what is not encoded
  cost::Measured measured;
  cost::FusionSizes sizes{};
  cost::ExchangeSizes exchange;
};

// Where buffers end decides what these lose: no measurement may have a say.
bool has_fixed_buffers(Compression compression);

// Several lines, the last one ended, too.
std::string explain(const Layout& layout, const Reasons& reasons);

}  // namespace smdp
