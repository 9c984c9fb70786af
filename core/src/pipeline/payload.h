// What transfers carry: for each tensor a dtype and a shape, as text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "smdp/pipeline/schedule.h"

namespace smdp::pipeline {

// "float32[8x512x768]", "int64[]", several with + between. Commas would end a cell of a CSV. Throws InvalidArgument.
void check_payload(std::string_view text);

// In words what two payloads that differ do not have in common.
std::string difference_of(std::string_view sent, std::string_view received);

// Gives each text one place in Schedule::payloads.
class PayloadTable {
 public:
  explicit PayloadTable(Schedule& schedule);

  // Throws InvalidArgument: the text is no payload, or there are too many different ones.
  std::int16_t place_of(std::string_view text);

 private:
  Schedule& schedule_;
  std::map<std::string, std::int16_t, std::less<>> places_;
};

}  // namespace smdp::pipeline
