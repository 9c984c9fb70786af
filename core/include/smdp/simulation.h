// Predicts a step of data-parallel training from the cost model alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "smdp/export.h"
#include "smdp/gradient_reducer.h"

namespace smdp {

struct Layer {
  double forward_seconds = 0;
  double backward_seconds = 0;          // its gradients appear at the end
  std::vector<std::size_t> parameters;  // float32 elements of each parameter
};

struct DdpSetting {
  std::size_t hosts = 1;
  std::size_t ranks_per_host = 1;
  double bandwidth = 1.19e9;   // payload of a host's link, bytes/s per direction
  double hop_seconds = 30e-6;  // from a send until the peer wakes up
  Compression compression = Compression::kNone;
  double topk_ratio = 0.01;
  std::size_t buffer_bytes = std::size_t{25} << 20;  // upper limit, as in GradientReducerOptions
  std::string algorithm = "auto";                    // between hosts: auto, direct, ring, recursive_doubling
};

struct DdpPrediction {
  double step_seconds = 0;
  double compute_seconds = 0;
  double communication_seconds = 0;  // time that the link is busy
  double exposed_seconds = 0;        // part of the step beyond compute
  double efficiency = 1;             // compute / step, relative to a single rank
  std::size_t buffers = 0;
};

// Predicts a step; `layers` is in forward order. Throws InvalidArgument.
SMDP_API DdpPrediction simulate_ddp(const std::vector<Layer>& layers, const DdpSetting& setting);

}  // namespace smdp
