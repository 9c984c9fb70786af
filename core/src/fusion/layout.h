// The places of gradients in fusion buffers.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/uneven_shards.h"
#include "cost/fusion_cost.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

struct Place {
  std::size_t buffer = 0;
  std::size_t offset = 0;  // elements
};

struct PlannedBuffer {
  DType dtype = DType::kFloat32;
  std::size_t count = 0;             // elements, including the gaps that align places to 64 bytes
  bool is_alone = false;             // one large gradient, which is not copied
  std::vector<std::size_t> members;  // gradients, in order
  ShardEnds ends = {};               // of the owners' shards, if its gradients must not be cut
};

// Returns the elements that a gradient takes, including the gap behind it.
std::size_t place_size(const Gradient& gradient);

struct Layout {
  std::vector<PlannedBuffer> buffers;  // in the order in which backward fills them
  std::vector<Place> places;           // by gradient

  std::size_t bytes() const;
};

// order: gradients as backward produces them. cap: bytes that only a single gradient may exceed. The first buffer is
// small, so that communication starts early. The last ones are small because nothing hides their time.
Layout lay_out(const std::vector<Gradient>& gradients, const std::vector<std::size_t>& order,
               const cost::FusionSizes& sizes, std::size_t cap);

}  // namespace smdp
