// The payloads of transfers: a dtype and a shape for each tensor, as text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// Accepts "float32[8x512x768]", "int64[]", several joined by +. Commas would end a cell of a CSV. Throws
// InvalidArgument.
void check_payload(std::string_view text);

// Describes the first difference between two payloads.
std::string difference_of(std::string_view sent, std::string_view received);

// Gives each text one index in Schedule::payloads.
class PayloadTable {
 public:
  explicit PayloadTable(Schedule& schedule);

  // Throws InvalidArgument if the text is not a payload, or if there are too many different ones.
  std::int16_t place_of(std::string_view text);

 private:
  Schedule& schedule_;
  std::map<std::string, std::int16_t, std::less<>> places_;
};

}  // namespace smdp::pipeline
