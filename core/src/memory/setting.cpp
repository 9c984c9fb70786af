#include "memory/setting.h"

#include <string>

#include "common/argument.h"
#include "memory/checkpointing.h"

namespace smdp::memory {

void check(const Setting& setting) {
  check_count("microbatch_size", setting.microbatch_size, 1, 1 << 30);
  check_count("microbatches", setting.microbatches, 1, 1 << 30);
  check_count("decoder_sequence", setting.decoder_sequence, 0, 1 << 30);
  check_count("pipeline", setting.pipeline, 1, 1 << 16);
  check_count("virtual_stages", setting.virtual_stages, 1, 1 << 16);
  check_count("tensor", setting.tensor, 1, 1 << 20);
  check_count("data", setting.data, 1, 1 << 24);
  check_count("sharding_degree", setting.sharding_degree, 0, setting.data);
  check_count("activation_loading_horizon", setting.activation_loading_horizon, 0, 1 << 30);
  check_count("bucket_bytes", setting.bucket_bytes, 0);
  if (setting.sharding_degree != 0 && setting.data % setting.sharding_degree != 0) {
    refuse("sharding_degree", std::to_string(setting.sharding_degree),
           "a divisor of data = " + std::to_string(setting.data));
  }
  if (!setting.in_flight.empty() && static_cast<std::int64_t>(setting.in_flight.size()) != setting.pipeline) {
    refuse("in_flight", std::to_string(setting.in_flight.size()) + " numbers",
           "one for each of the " + std::to_string(setting.pipeline) + " pipeline ranks, or none");
  }
  for (const double count : setting.in_flight) check_amount("in_flight", count, 1e9);
  if (setting.schedule == "dualpipe_v" && setting.microbatches < 2 * setting.pipeline) {
    refuse("microbatches", std::to_string(setting.microbatches),
           std::to_string(2 * setting.pipeline) + " or more for dualpipe_v, the number of its virtual stages");
  }
  parse_checkpointing(setting.checkpointing);
}

}  // namespace smdp::memory
