// DeepSpeed's cold estimators of ZeRO-2 and ZeRO-3 (runtime/zero/stage_1_and_2.py and stage3.py): what users of
// DeepSpeed know their models by. Their factor of 1.5 on host memory stands for pinned buffers.
#include <algorithm>

#include "common/argument.h"
#include "smdp/memory.h"

namespace smdp::memory {

DeepSpeedMemory deepspeed_memory(std::int64_t stage, double parameters, double largest_layer,
                                 std::int64_t gpus_per_host, std::int64_t hosts, const std::string& offload) {
  if (stage != 2 && stage != 3) refuse("stage", std::to_string(stage), "2, 3");
  check_amount("parameters", parameters, 1e15);
  check_amount("largest_layer", largest_layer, parameters);
  check_count("gpus_per_host", gpus_per_host, 1, 1 << 20);
  check_count("hosts", hosts, 1, 1 << 24);
  const bool has_all = offload == "all" && stage == 3;
  if (!has_all && offload != "none" && offload != "optimizer") {
    refuse("offload", "'" + offload + "'", stage == 3 ? "none, optimizer, all" : "none, optimizer");
  }
  constexpr double kPinned = 1.5;
  const auto local = static_cast<double>(gpus_per_host);
  const auto gpus = local * static_cast<double>(hosts);
  if (stage == 2) {
    // On the host 4 bytes a parameter for every GPU of the job, as the model is made in fp32; so DeepSpeed has it.
    if (offload == "optimizer") return {2 * parameters, parameters * std::max(4 * gpus, 16.0) * kPinned};
    return {2 * parameters + 18 * parameters / gpus, 4 * parameters * local * kPinned};
  }
  const double gathered = 4 * largest_layer;
  const double share = 1.0 / static_cast<double>(hosts);
  if (has_all) return {gathered, 18 * parameters * share * kPinned};
  if (offload == "optimizer") return {gathered + 2 * parameters / gpus, 16 * parameters * share * kPinned};
  return {gathered + 18 * parameters / gpus, local * gathered * kPinned};
}

}  // namespace smdp::memory
