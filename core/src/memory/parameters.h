// Parameters of an architecture: what tensor parallelism divides, and what every rank keeps whole.
#pragma once

#include "smdp/memory.h"

namespace smdp::memory {

struct Split {
  double divided = 0;  // by tensor
  double whole = 0;
  // Elements on one of `tensor` ranks.
  double local(std::int64_t tensor) const { return divided / static_cast<double>(tensor) + whole; }
};

// Throw InvalidArgument where a field is out of range or two contradict each other.
void check(const Layers& layer);
void check(const Architecture& architecture);

// One layer of the run, on one of `tensor` ranks. Key-value heads that are fewer than ranks are held by several.
Split layer_parameters(const Layers& layer, std::int64_t tensor);
Split embedding_parameters(const Architecture& architecture);
// Without the logits' matrix if it is tied.
Split head_parameters(const Architecture& architecture);
// The logits' matrix, or the embedding that stands for it.
double output_matrix(const Architecture& architecture);
bool has_decoder_embedding(const Architecture& architecture);

}  // namespace smdp::memory
