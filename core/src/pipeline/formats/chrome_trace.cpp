#include <array>
#include <charconv>
#include <string>

#include "pipeline/formats/quote.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};  // with a decimal point in any locale
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 15);
  return {text.data(), end};
}

}  // namespace

std::string chrome_trace(const Schedule& schedule, const Simulation& simulation) {
  constexpr double kMicroseconds = 1e6;
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  text += "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_name\", \"args\": {\"name\": " + quote(schedule.name) + "}}";
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const std::string thread = ", \"pid\": 0, \"tid\": " + std::to_string(rank);
    text += ",\n{\"ph\": \"M\"" + thread + ", \"name\": \"thread_name\", \"args\": {\"name\": \"rank " +
            std::to_string(rank) + "\"}}";
    const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Interval& times = simulation.timeline[static_cast<std::size_t>(rank)][i];
      if (is_transfer(row[i].kind)) continue;
      text += ",\n{\"ph\": \"X\"" + thread + ", \"name\": \"" + to_text(row[i]) + "\", \"cat\": \"" +
              std::string(name_of(row[i].kind)) + "\", \"ts\": " + number(times.start * kMicroseconds) +
              ", \"dur\": " + number((times.end - times.start) * kMicroseconds) +
              ", \"args\": {\"stage\": " + std::to_string(row[i].stage) +
              ", \"microbatch\": " + std::to_string(row[i].microbatch) + "}}";
    }
  }
  return text + "\n]}\n";
}

}  // namespace smdp::pipeline
