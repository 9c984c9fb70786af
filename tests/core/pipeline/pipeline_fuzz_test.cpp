// Damaged CSV and JSON at the readers of schedules. Whatever the text, the answer is a schedule or InvalidArgument, and
// what was read can be verified, simulated, drawn and written. SMDP_FUZZ_ROUNDS sets how many hundreds of texts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "pipeline/schedules.h"
#include "smdp/error.h"
#include "smdp/pipeline/formats.h"

namespace smdp::pipeline {
namespace {

int rounds() {
  const char* text = std::getenv("SMDP_FUZZ_ROUNDS");
  return 100 * (text == nullptr ? 400 : std::atoi(text));
}

using Random = std::mt19937_64;

// Pieces of both languages, and numbers near the limits of types.
const char* const kPieces[] = {
    "0F0",
    "1B1",
    ",",
    "\n",
    "\"",
    "[",
    "]",
    "{",
    "}",
    ":",
    "@3",
    ">9",
    "-1",
    "2147483647",
    "2147483648",
    "4194",
    "1e9",
    "null",
    "true",
    "\\u12",
    "REDUCE_TIED1",
    "\\ud800",
    "(",
    ")",
    "0SEND_F1>3",
    "99999999999",
    "",
    "UNSHARD",
    "0x10",
    "\xff",
    "\\",
    "OVERLAP_F_B",
    "3RECV_B0",
    "I",
    "W",
    "tied",
    "rank_of",
    "0",
    ";",
    "[[0]]",
    "OFFLOAD",
    " ",
    "microbatches",
    "RELOAD",
    ":float32[2x3]",
    "+int8[]",
    "REDUCE_NORM",
};

std::string damaged(std::string text, Random& random) {
  for (std::uint64_t i = 1 + random() % 4; i != 0; --i) {
    const std::size_t at = random() % (text.size() + 1);
    const std::size_t length = std::min<std::size_t>(text.size() - at, random() % 8);
    switch (random() % 4) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, kPieces[random() % std::size(kPieces)]);
        break;
      case 2:
        text.insert(at, text.substr(random() % (text.size() + 1), random() % 40));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random());
    }
  }
  return text;
}

void use(const Schedule& schedule) {
  EXPECT_EQ(from_json(to_json(schedule)), schedule);
  VerifyOptions options;
  options.memory_cap = 3;
  options.replicas = {schedule};
  options.alternates = {schedule};
  for (const Check check : all_checks()) {
    options.checks = {check};
    if (const auto found = verify(schedule, options)) {
      EXPECT_FALSE(found->message.empty());
    }
  }
  try {
    const Simulation result = simulate(schedule, uniform_costs(schedule.stages()));
    EXPECT_GE(result.makespan, 0);
    gantt(schedule, result, 80);
    chrome_trace(schedule, result);
  } catch (const InvalidArgument&) {
  }
  try {
    const Schedule reduced = add_reduce_grad(add_offload(add_unshard_reshard(schedule), {0}, 1));
    add_send_recv(
        add_reduce_norm(schedule.stages() > 1 ? add_tied_reductions(reduced, {{0, schedule.stages() - 1}}) : reduced));
  } catch (const InvalidArgument&) {
  }
}

std::vector<Schedule> seeds() {
  std::vector<Schedule> all;
  for (const ScheduleInfo& info : schedule_names()) {
    const std::string name(info.name);
    const Schedule schedule = make(name, 2, 4, virtual_stages_of(name).back());
    all.push_back(schedule);
    all.push_back(add_send_recv(schedule, {{0, 1, "float32[4x16]+bool[4]"}}));
    all.push_back(add_send_recv(add_reduce_norm(add_tied_reductions(
        add_reduce_grad(add_offload(add_unshard_reshard(schedule, 2), {0}, 1)), {{0, schedule.stages() - 1}}))));
  }
  return all;
}

template <typename Write, typename Read>
void fuzz(Write&& write, Read&& read) {
  std::vector<std::string> texts;
  for (const Schedule& schedule : seeds()) texts.push_back(write(schedule));
  int understood = 0;
  for (int round = 0; round < rounds(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Random random(static_cast<std::uint64_t>(round));
    const std::string text = damaged(texts[random() % texts.size()], random);
    try {
      const Schedule schedule = read(text);
      ++understood;
      // Large ones are as valid as small ones, but there is no time for many of them.
      if (schedule.stages() * schedule.microbatches < 100'000) use(schedule);
    } catch (const InvalidArgument&) {
    }
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << text;
      return;
    }
  }
  EXPECT_GT(understood, rounds() / 50) << "the damage is too great to show anything";
}

TEST(PipelineFuzz, Csv) {
  fuzz(to_csv, [](const std::string& text) { return from_csv(text); });
}

TEST(PipelineFuzz, Json) { fuzz(to_json, from_json); }

}  // namespace
}  // namespace smdp::pipeline
