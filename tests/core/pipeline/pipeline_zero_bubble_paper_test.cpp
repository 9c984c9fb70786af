// The bubble rates (of span) that the Zero Bubble paper, arXiv 2401.10241, prints for 1F1B, from its own times. Those
// of its other schedules depend on its authors' orders: they are printed beside ours, and ours must not be far behind.
#include <gtest/gtest.h>

#include <cstdio>

#include "pipeline/schedules.h"

namespace smdp::pipeline {
namespace {

struct Row {
  int p, m, v;
  double forward, input, weight, hop;  // ms of a full stage
  int hidden, heads;
  double one, interleaved, zb_1p, zb_2p;
};

constexpr Row kRows[] = {
    {8, 24, 3, 18.522, 18.086, 9.337, 0.601, 2304, 24, .2431, .1055, .1585, .0433},
    {8, 32, 3, 18.513, 18.086, 9.331, 0.626, 2304, 24, .1985, .0818, .1242, .0039},
    {8, 64, 3, 18.546, 18.097, 9.321, 0.762, 2304, 24, .1240, .0443, .0674, .0026},
    {8, 24, 4, 29.718, 29.444, 19.927, 0.527, 4096, 32, .2347, .0808, .1323, .0029},
    {8, 32, 4, 29.802, 29.428, 19.530, 0.577, 4096, 32, .1898, .0628, .1045, .0022},
    {8, 64, 4, 29.935, 29.621, 19.388, 0.535, 4096, 32, .1091, .0320, .0554, .0010},
    {16, 48, 3, 11.347, 11.248, 8.132, 0.377, 5120, 40, .2552, .1104, .1397, .0066},
    {16, 64, 3, 11.307, 11.254, 8.101, 0.379, 5120, 40, .2082, .0852, .1088, .0054},
    {16, 128, 3, 11.325, 11.308, 8.109, 0.378, 5120, 40, .1251, .0445, .0576, .0028},
    {32, 96, 2, 10.419, 10.207, 7.715, 0.408, 6144, 48, .2646, .1493, .1421, .0038},
    {32, 128, 2, 10.408, 10.204, 7.703, 0.408, 6144, 48, .2168, .1164, .1106, .0029},
    {32, 256, 2, 10.402, 10.248, 7.698, 0.460, 6144, 48, .1352, .0624, .0594, .0018},
};

double bubble_of_span(const char* name, const Row& row, int v) {
  GenerateOptions options;
  options.stages = row.p;
  options.microbatches = row.m;
  options.virtual_stages = v;
  const int stages = row.p * v;
  Costs costs = uniform_costs(stages, row.forward / v, row.input / v, row.weight / v, 1.0 / v);
  // The paper's memory: 34 h + 5 a s of F, of which 32 h stay until W; s is 1024.
  const double kept = 32.0 * row.hidden / (34.0 * row.hidden + 5.0 * row.heads * 1024);
  costs.stash_bytes.assign(static_cast<std::size_t>(stages), kept / v);
  costs.hop = row.hop;
  options.costs = costs;
  const double work = row.m * (row.forward + row.input + row.weight);
  return 1 - work / simulate(generate(name, options), costs).span;
}

TEST(ZeroBubblePaper, BubbleRates) {
  std::printf("%3s %4s | 1f1b   paper  | interl. paper  | zb_1p  paper  | zb_2p  paper\n", "p", "m");
  for (const Row& row : kRows) {
    const double one = bubble_of_span("1f1b", row, 1);
    const double interleaved = bubble_of_span("interleaved_1f1b", row, row.v);
    const double zb_1p = bubble_of_span("zb_1p", row, 1);
    const double zb_2p = bubble_of_span("zb_2p", row, 1);
    std::printf("%3d %4d | %.4f %.4f | %.4f %.4f | %.4f %.4f | %.4f %.4f\n", row.p, row.m, one, row.one, interleaved,
                row.interleaved, zb_1p, row.zb_1p, zb_2p, row.zb_2p);
    EXPECT_NEAR(one, row.one, 1e-4);
    // Of p hops more in torch's order than in the paper's.
    EXPECT_NEAR(interleaved, row.interleaved, 0.015);
    EXPECT_NEAR(zb_1p, row.zb_1p, 1e-4);
    EXPECT_LT(zb_2p, row.zb_2p + 0.0032);
  }
}

}  // namespace
}  // namespace smdp::pipeline
