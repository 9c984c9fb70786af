#include "fusion/explanation.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "collectives/chunks.h"
#include "common/counted.h"

namespace smdp {
namespace {

std::string megabytes(std::size_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f MB", static_cast<double>(bytes) / 1e6);
  return text.data();
}

std::string rate(double bytes) { return std::to_string(static_cast<long long>(bytes / 1e6)) + " MB/s"; }

std::string kibibytes(std::size_t bytes) { return std::to_string(bytes >> 10) + " KiB"; }

bool is_coded(const PlannedBuffer& plan, const Reasons& reasons) {
  return reasons.compression != Compression::kNone && reasons.hosts > 1 && plan.dtype == DType::kFloat32;
}

std::string sizes_of(const Reasons& reasons) {
  const bool is_fixed = has_fixed_buffers(reasons.compression);
  const cost::Measured figures = is_fixed ? cost::Measured{} : reasons.measured;
  const std::string times = "the smallest all_reduce takes " + std::to_string(static_cast<int>(figures.latency * 1e6)) +
                            " us, large ones " + rate(figures.bandwidth) + ", sums " + rate(figures.reduction);
  std::string text =
      is_fixed
          ? std::string("The loss of ") + name_of(reasons.compression) +
                " compression depends on where buffers end, so measurements are not used. Assumed: " + times
          : "Measured: " + times + ", so a buffer flows at " + rate(cost::flow(figures, reasons.hosts, reasons.lanes));
  return text + ". Buffers have at most " + megabytes(reasons.sizes.usual) +
         " (latency is 2 % of their time, or 1 MiB per host; limit " + megabytes(reasons.cap) +
         "), the first and the last about " + megabytes(reasons.sizes.smallest) + ".\n";
}

std::string exchange_of(bool is_encoded, const char* what, const Reasons& reasons) {
  const std::size_t most =
      chunk_bytes(is_encoded, reasons.algorithm, reasons.exchange, reasons.hosts, reasons.lanes) / reasons.lanes;
  const std::string start = std::string("Between hosts, ") + what;
  const std::string shard = "at most " + kibibytes(most / reasons.hosts);
  const std::string end = std::string("; over ") +
                          (reasons.exchange.streams == 1 ? "one connection" : "all connections") + " to each rank.\n";
  if (is_encoded) return start + "direct: every host owns a part of a chunk, " + shard + " before encoding" + end;
  switch (reasons.algorithm) {
    case Algorithm::kRing:
      return start + "ring: every host owns a part of a chunk, " + shard + end;
    case Algorithm::kRecursiveDoubling:
      return start + "recursive_doubling: each pair of hosts exchanges whole chunks, at most " + kibibytes(most) + end;
    default:
      return start + "direct: every host owns a part of a chunk, " + shard + "; where they would be below " +
             std::to_string(reasons.exchange.least) + " bytes, fewer hosts own one" + end;
  }
}

// Describes how a buffer is divided between its owners.
std::string owners_in(const PlannedBuffer& plan, const Reasons& reasons) {
  const std::size_t element = size_of(plan.dtype);
  const bool is_encoded = is_coded(plan, reasons);
  std::size_t owners = reasons.hosts == 1 ? reasons.ranks : reasons.hosts * reasons.lanes;
  if (reasons.hosts > 1 && !is_encoded) {
    if (reasons.algorithm == Algorithm::kRecursiveDoubling) return "";
    if (reasons.algorithm == Algorithm::kDirect) {
      // All its chunks have this size.
      const Batch::Item item{nullptr, nullptr, plan.count, {plan.dtype, ReduceOp::kSum}};
      const Chunk first = Chunks(item, reasons.algorithm, reasons.exchange, reasons.hosts, reasons.lanes).at(0, 0);
      owners = reasons.lanes * owners_of(first, reasons.exchange, reasons.hosts, reasons.lanes, element);
    }
  }
  return ", " + std::to_string(owners) + " owners of " + megabytes(plan.count * element / owners);
}

}  // namespace

bool has_fixed_buffers(Compression compression) {
  return compression == Compression::kInt8 || compression == Compression::kTopK;
}

std::string explain(const Layout& layout, const Reasons& reasons) {
  std::string text = counted(layout.places.size(), "gradient") + " in " +
                     counted(layout.buffers.size(), "fusion buffer") + " between " + counted(reasons.ranks, "rank") +
                     " on " + counted(reasons.hosts, "host") +
                     "; compression between hosts: " + name_of(reasons.compression) + ".\n" + sizes_of(reasons);
  if (reasons.hosts > 1) {
    const auto coded = std::count_if(layout.buffers.begin(), layout.buffers.end(),
                                     [&](const PlannedBuffer& plan) { return is_coded(plan, reasons); });
    const bool are_all = coded == static_cast<std::ptrdiff_t>(layout.buffers.size());
    if (coded != 0) text += exchange_of(true, "float32 ", reasons);
    if (!are_all) text += exchange_of(false, coded != 0 ? "other dtypes " : "", reasons);
  }
  for (std::size_t i = 0; i < layout.buffers.size(); ++i) {
    const PlannedBuffer& plan = layout.buffers[i];
    text += "buffer " + std::to_string(i) + ": " + megabytes(plan.count * size_of(plan.dtype)) + " " +
            name_of(plan.dtype) + ", " + counted(plan.members.size(), "gradient") + owners_in(plan, reasons) + "\n";
  }
  return text;
}

}  // namespace smdp
