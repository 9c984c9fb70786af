// The parameters of an architecture: those that tensor parallelism divides, and those that every rank keeps whole.
#pragma once

#include "smdp/memory.h"

namespace smdp::memory {

struct Split {
  double divided = 0;  // by tensor parallelism
  double whole = 0;
  // Returns the elements on one of `tensor` ranks.
  double local(std::int64_t tensor) const { return divided / static_cast<double>(tensor) + whole; }
};

// Throw InvalidArgument if a field is out of range or two fields contradict each other.
void check(const Layers& layer);
void check(const Architecture& architecture);

// One layer of the run, on one of `tensor` ranks. If there are fewer key-value heads than ranks, several ranks hold
// each.
Split layer_parameters(const Layers& layer, std::int64_t tensor);
Split embedding_parameters(const Architecture& architecture);
// Excludes the logits' matrix if it is tied.
Split head_parameters(const Architecture& architecture);
// The logits' matrix, or the embedding that replaces it.
double output_matrix(const Architecture& architecture);
bool has_decoder_embedding(const Architecture& architecture);

}  // namespace smdp::memory
