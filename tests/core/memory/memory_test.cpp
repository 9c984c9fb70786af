// The memory model's parts one by one, and no input that crashes it.
#include "smdp/memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "memory/checkpointing.h"
#include "memory/parameters.h"
#include "memory/pieces.h"
#include "memory/stages.h"
#include "smdp/error.h"

namespace smdp::memory {
namespace {

Layers gpt_layers(std::int64_t count, std::int64_t hidden, std::int64_t heads) {
  Layers layers;
  layers.count = count;
  layers.hidden = hidden;
  layers.heads = layers.key_value_heads = heads;
  layers.head_size = hidden / heads;
  layers.ffn = 4 * hidden;
  layers.has_query_key_value_bias = layers.has_output_bias = layers.has_mlp_bias = layers.has_dropout = true;
  return layers;
}

Architecture gpt(std::int64_t count, std::int64_t hidden, std::int64_t heads) {
  Architecture architecture;
  architecture.hidden = hidden;
  architecture.vocabulary = architecture.outputs = 1000;
  architecture.positions = 64;
  architecture.layers = {gpt_layers(count, hidden, heads)};
  architecture.head_extra = 2 * hidden;
  architecture.is_tied = true;
  return architecture;
}

Setting setting_of(std::int64_t pipeline = 1) {
  Setting setting;
  setting.sequence = 32;
  setting.pipeline = pipeline;
  setting.microbatches = 8;
  return setting;
}

Trace trace_of(std::size_t units) {
  Trace trace;
  for (std::size_t i = 0; i < units; ++i) {
    const auto number = static_cast<double>(i + 1);
    trace.units.push_back({100 * number, 10 * number, i + 1 < units ? number : 0});
  }
  return trace;
}

std::vector<std::int64_t> layers_per_rank(const Pieces& pieces, const Setting& setting) {
  std::vector<std::int64_t> counts;
  for (const std::vector<Span>& spans : spans_of(pieces, setting)) {
    counts.push_back(0);
    for (const Span& span : spans) {
      for (std::size_t i = span.begin; i < span.end; ++i) counts.back() += pieces.list[i].is_layer ? 1 : 0;
    }
  }
  return counts;
}

TEST(Parameters, TensorRanksTogetherHoldTheModelAndCopiesOfWhatIsWhole) {
  const Layers layers = gpt_layers(1, 64, 8);
  const Split split = layer_parameters(layers, 4);
  EXPECT_EQ(split.divided, 4 * 64 * 64 + 3 * 64 + 8 * 64 * 64 + 4 * 64);
  EXPECT_EQ(split.whole, 64 + 64 + 4 * 64);
  EXPECT_EQ(split.local(4), split.divided / 4 + split.whole);
}

TEST(Parameters, FewKeyValueHeadsAreHeldBySeveralRanks) {
  Layers layers = gpt_layers(1, 64, 8);
  layers.key_value_heads = 2;
  layers.has_query_key_value_bias = false;
  const double keys = layer_parameters(layers, 2).local(2) - layer_parameters(layers, 4).local(4);
  // From 2 to 4 ranks, queries, output and MLP halve; a rank keeps one head of keys and one of values.
  EXPECT_EQ(keys, (2.0 * 64 * 64 + 8 * 64 * 64 + 4 * 64) / 4);
}

TEST(Checkpointing, GroupsOfTheDocumentedExample) {
  // [a, b | c, d, e] on two stages: group_3 gives {a, b} and {c, d, e}, never across the cut.
  Pieces pieces = pieces_of(trace_of(5), setting_of(2));
  const Span first{0, 2};
  const Span second{2, 5};
  const auto parse = parse_checkpointing;
  EXPECT_EQ(kept(pieces.list, first, parse("none")).bytes, 10 + 20);
  EXPECT_EQ(kept(pieces.list, second, parse("none")).bytes, 30 + 40 + 50);
  EXPECT_EQ(kept(pieces.list, second, parse("each")).bytes, 2 + 3 + 4);
  EXPECT_EQ(kept(pieces.list, second, parse("each")).rebuilt, 50);
  EXPECT_EQ(kept(pieces.list, second, parse("group_2")).bytes, 2 + 4);
  EXPECT_EQ(kept(pieces.list, second, parse("group_2")).rebuilt, 70);
  EXPECT_EQ(kept(pieces.list, first, parse("group_3")).bytes, 0);
  EXPECT_EQ(kept(pieces.list, first, parse("group_3")).rebuilt, 30);
  for (const char* name : {"group_3", "contiguous"}) {
    EXPECT_EQ(kept(pieces.list, second, parse(name)).bytes, 2);
    EXPECT_EQ(kept(pieces.list, second, parse(name)).rebuilt, 120);
  }
  for (const char* name : {"", "group_", "group_0", "group_-1", "group_2x", "group_99999999999999999999", "all"}) {
    EXPECT_THROW(parse(name), InvalidArgument) << name;
  }
}

TEST(Stages, RemainderGoesToTheMiddle) {
  Setting setting = setting_of(4);
  EXPECT_EQ(layers_per_rank(pieces_of(gpt(10, 64, 8), setting), setting), (std::vector<std::int64_t>{2, 3, 3, 2}));
  EXPECT_EQ(layers_per_rank(pieces_of(gpt(9, 64, 8), setting), setting), (std::vector<std::int64_t>{2, 3, 2, 2}));
  setting.stage_sizes = {1, 0, 8, 0};
  EXPECT_EQ(layers_per_rank(pieces_of(gpt(9, 64, 8), setting), setting), (std::vector<std::int64_t>{1, 0, 8, 0}));
}

TEST(Stages, EmbeddingIsOnTheFirstAndHeadOnTheLastAlsoAlone) {
  Setting setting = setting_of(3);
  setting.stage_sizes = {0, 4, 0};
  const Estimate found = estimate(gpt(4, 64, 8), setting);
  EXPECT_EQ(found.stages[0].parameters, 2 * (1000 + 64) * 64);
  EXPECT_EQ(found.stages[2].parameters, 2 * (1000 * 64 + 2 * 64));
  EXPECT_GT(found.stages[2].logits, 0);
}

TEST(Activations, ExpertsGatesAndFewKeyValueHeads) {
  Setting setting = setting_of();  // 32 tokens, 2 bytes
  Layers layer = gpt_layers(1, 64, 8);
  layer.has_dropout = false;
  setting.flash_attention = true;
  const double rows = 32 * 8 * 4;
  EXPECT_EQ(layer_activations(layer, setting), 32 * 2 * (64 * 4 + 64 * 4 + 2 * 256) + rows);
  layer.is_gated = true;
  EXPECT_EQ(layer_activations(layer, setting), 32 * 2 * (64 * 4 + 64 * 4 + 4 * 256) + rows);
  layer.key_value_heads = 2;
  EXPECT_EQ(layer_activations(layer, setting), 32 * 2 * (64 * 4 + 64 * 2 + 16 * 2 + 4 * 256) + rows);
  layer.has_unfused_norms = layer.has_query_key_norm = true;
  const double norms = 32 * (64 * 2 * 4 + (64 + 16) * (2 + 4));
  EXPECT_EQ(layer_activations(layer, setting), 32 * 2 * (64 * 4 + 64 * 2 + 16 * 2 + 4 * 256) + rows + norms);
  layer.has_unfused_norms = layer.has_query_key_norm = false;
  layer.experts = 16;
  layer.experts_per_token = 3;
  layer.shared_ffn = 10;
  EXPECT_EQ(layer_activations(layer, setting),
            32 * 2 * (64 * 4 + 64 * 2 + 16 * 2 + 3 * (4 * 256 + 2 * 64) + 4 * 10) + 32 * 4 * 16 + rows);
}

TEST(Stages, InVShapeTheFirstRankHasEmbeddingAndHead) {
  Setting setting = setting_of(4);
  setting.virtual_stages = 2;
  setting.schedule = "zb_v";
  const Estimate v = estimate(gpt(8, 64, 8), setting);
  setting.schedule = "interleaved_1f1b";
  const Estimate looped = estimate(gpt(8, 64, 8), setting);
  EXPECT_GT(v.stages[0].logits, 0);
  EXPECT_EQ(v.stages[3].logits, 0);
  EXPECT_EQ(looped.stages[0].logits, 0);
  EXPECT_GT(looped.stages[3].logits, 0);
  // The tied embedding is on one rank of the one, on two of the other.
  double of_v = 0;
  double of_looped = 0;
  for (const StageMemory& stage : v.stages) of_v += stage.parameters;
  for (const StageMemory& stage : looped.stages) of_looped += stage.parameters;
  EXPECT_EQ(of_v, 2 * parameters(gpt(8, 64, 8)));
  EXPECT_EQ(of_looped - of_v, 2 * 1000 * 64);
}

TEST(Estimate, StagesOfOneModelHoldAllOfIt) {
  for (const std::int64_t pipeline : {1, 2, 3, 5}) {
    double sum = 0;
    Architecture untied = gpt(10, 64, 8);
    untied.is_tied = false;
    const Estimate found = estimate(untied, setting_of(pipeline));
    for (const StageMemory& stage : found.stages) sum += stage.parameters;
    EXPECT_EQ(sum, 2 * parameters(untied));
  }
}

TEST(Estimate, TiedUnitsOfATraceCountOncePerStage) {
  Trace trace = trace_of(4);
  trace.tied = {{50, {0, 1, 3}}};
  Setting setting = setting_of(1);
  setting.precision = "fp32";
  EXPECT_EQ(estimate(trace, setting).stages[0].parameters, 4 * (1000 - 2 * 50));
  setting.pipeline = 2;
  EXPECT_EQ(estimate(trace, setting).stages[0].parameters, 4 * (300 - 50));
  EXPECT_EQ(estimate(trace, setting).stages[1].parameters, 4 * 700);
}

TEST(Estimate, TraceGrowsWithItsMicrobatch) {
  Trace trace = trace_of(3);
  trace.microbatch_size = 2;
  Setting setting = setting_of();
  setting.microbatch_size = 6;
  EXPECT_EQ(estimate(trace, setting).stages[0].activations, 3 * (10 + 20 + 30));
}

TEST(Estimate, OffloadKeepsTheHorizonAndOneMoreOnTheDevice) {
  Setting setting = setting_of(8);
  setting.microbatches = 64;
  setting.checkpointing = "each";
  const Estimate resident = estimate(gpt(16, 64, 8), setting);
  setting.offload_activations = true;
  setting.activation_loading_horizon = 2;
  const Estimate offloaded = estimate(gpt(16, 64, 8), setting);
  EXPECT_EQ(resident.stages[0].in_flight, 8);
  EXPECT_DOUBLE_EQ(offloaded.stages[0].activations, resident.stages[0].activations * 3 / 8);
  EXPECT_DOUBLE_EQ(offloaded.stages[0].host + offloaded.stages[0].activations, resident.stages[0].activations);
  EXPECT_EQ(offloaded.stages[7].activations, resident.stages[7].activations);
  setting.offload_optimizer = true;
  EXPECT_EQ(estimate(gpt(16, 64, 8), setting).stages[7].optimizer, 0);
  EXPECT_EQ(estimate(gpt(16, 64, 8), setting).stages[7].host, resident.stages[7].optimizer);
}

TEST(Estimate, OffloadOfASingleStageKeepsTheHorizonOfBlocks) {
  Setting setting = setting_of(1);
  for (const auto& [checkpointing, blocks] :
       {std::pair{"none", 16.0}, std::pair{"selective", 16.0}, std::pair{"each", 16.0}, std::pair{"group_4", 4.0}}) {
    setting.checkpointing = checkpointing;
    setting.offload_activations = false;
    const double all = estimate(gpt(16, 64, 8), setting).stages[0].activations;
    setting.offload_activations = true;
    setting.activation_loading_horizon = 2;
    const Estimate offloaded = estimate(gpt(16, 64, 8), setting);
    EXPECT_DOUBLE_EQ(offloaded.stages[0].activations, all * 3 / blocks);
    EXPECT_DOUBLE_EQ(offloaded.stages[0].host, all * (blocks - 3) / blocks);
  }
}

TEST(Estimate, SimulatedCountsReplaceTheClosedForm) {
  Setting setting = setting_of(2);
  setting.in_flight = {1.5, 0.5};
  const Estimate found = estimate(gpt(4, 64, 8), setting);
  EXPECT_EQ(found.stages[0].in_flight, 1.5);
  EXPECT_EQ(found.stages[0].activations, 3 * found.stages[1].activations);
}

TEST(Estimate, ShardedParametersAreGatheredForUse) {
  Setting setting = setting_of();
  setting.data = 16;
  setting.sharding = "zero3";
  const Estimate found = estimate(gpt(4, 64, 8), setting);
  EXPECT_EQ(found.stages[0].parameters, 2 * parameters(gpt(4, 64, 8)) / 16);
  const double layer = layer_parameters(gpt_layers(1, 64, 8), 1).local(1);
  EXPECT_EQ(found.stages[0].unsharded, 2 * (1064 * 64 + layer)) << "the embedding and the first layer";
  Architecture plain = gpt(4, 64, 8);
  plain.vocabulary = plain.outputs = 0;
  plain.is_tied = false;
  EXPECT_EQ(estimate(plain, setting).stages[0].unsharded, 2 * 2 * layer);
  setting.sharding_degree = 4;
  EXPECT_EQ(estimate(gpt(4, 64, 8), setting).stages[0].parameters, 2 * parameters(gpt(4, 64, 8)) / 4);
  setting.sharding_degree = 5;
  EXPECT_THROW(estimate(gpt(4, 64, 8), setting), InvalidArgument);
}

TEST(Estimate, DecoderMayHaveItsOwnLength) {
  Architecture model = gpt(2, 64, 8);
  model.layers.push_back(model.layers[0]);
  model.layers[1].has_cross_attention = true;
  model.layers[1].norms = 3;
  Setting setting = setting_of();
  setting.precision = "fp32";
  const double equal = layer_activations(model.layers[1], setting);
  setting.decoder_sequence = 8;
  EXPECT_LT(layer_activations(model.layers[1], setting), equal);
  EXPECT_EQ(layer_activations(model.layers[0], setting), layer_activations(gpt_layers(1, 64, 8), setting));
  // The decoder's embedding is a copy where its first layer is not on the encoder's stage.
  setting.pipeline = 2;
  const Estimate found = estimate(model, setting);
  EXPECT_EQ(found.stages[0].parameters + found.stages[1].parameters, 4 * (parameters(model) + 1000 * 64));
}

TEST(Estimate, LearnedPositionsBoundTheSequence) {
  const auto message = [](const Architecture& model, const Setting& setting) -> std::string {
    try {
      estimate(model, setting);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  Architecture model = gpt(4, 64, 8);
  Setting setting = setting_of();
  setting.sequence = 64;
  EXPECT_EQ(message(model, setting), "nothing");
  setting.decoder_sequence = 65;
  EXPECT_EQ(message(model, setting), "nothing") << "it has no decoder";
  model.layers.back().has_cross_attention = true;
  EXPECT_EQ(
      message(model, setting),
      "[smdp] decoder_sequence = 65 is not valid; allowed: at most 64, the rows of the model's position embedding");
  setting.sequence = 65;
  EXPECT_EQ(message(model, setting),
            "[smdp] sequence = 65 is not valid; allowed: at most 64, the rows of the model's position embedding");
  model.positions = 0;
  EXPECT_EQ(message(model, setting), "nothing") << "rotary positions have no end";
}

TEST(StateBytes, OneGradientTravels) {
  for (const auto& [precision, wire] :
       {std::pair("fp32", 4), {"fp16", 2}, {"bf16", 2}, {"amp", 4}, {"megatron_bf16", 4}, {"megatron_fp16", 2}}) {
    EXPECT_EQ(state_bytes(precision, "none", 1).wire, wire) << precision;
    EXPECT_EQ(state_bytes(precision, "zero3", 8).wire, wire) << precision;
  }
  Setting setting = setting_of();
  setting.data = 2;
  setting.precision = "amp";
  EXPECT_EQ(estimate(gpt(4, 64, 8), setting).stages[0].buckets, 4 * parameters(gpt(4, 64, 8)));
}

TEST(InFlight, ClosedForms) {
  const auto at = [](const char* name, std::int64_t p, std::int64_t r, std::int64_t m, std::int64_t v) {
    return in_flight(name, p, r, m, v);
  };
  EXPECT_EQ(at("gpipe", 4, 2, 8, 1), 8);
  EXPECT_EQ(at("looped_bfs", 4, 0, 8, 2), 8);
  EXPECT_EQ(at("1f1b", 4, 1, 8, 1), 3);
  EXPECT_EQ(at("1f1b", 4, 1, 2, 1), 2);
  EXPECT_EQ(at("interleaved_1f1b", 4, 0, 8, 2), 5.5);
  EXPECT_EQ(at("interleaved_1f1b", 4, 0, 8, 4), 4.75);
  EXPECT_EQ(at("interleaved_1f1b", 8, 0, 24, 2), 11.5);
  EXPECT_EQ(at("interleaved_1f1b", 4, 3, 8, 2), 2.5);
  EXPECT_EQ(at("interleaved_zero_bubble", 8, 3, 24, 2), 8);
  EXPECT_EQ(at("zb_1p", 8, 3, 24, 1), 8);
  EXPECT_EQ(at("zb_2p", 8, 3, 24, 1), 15);
  EXPECT_EQ(at("zb_v", 8, 3, 24, 2), 8);
  EXPECT_EQ(at("dualpipe_v", 8, 3, 24, 2), 8.5);
  EXPECT_EQ(in_flight("smp_interleaved", 4, 0, 9, 1), 6);
  EXPECT_EQ(in_flight("smp_interleaved", 4, 0, 9, 1, 3), 3);
  EXPECT_EQ(in_flight("smp_interleaved", 1, 0, 9, 1, 3), 1);
  // Shares of 1F1B's peak that the greedy schedules of their authors were seen to need.
  for (const auto& [p, half, least] : {std::tuple(4, 0.75, 0.5), {8, 0.625, 0.5}, {16, 0.5625, 0.375}}) {
    EXPECT_EQ(at("v_half", p, 0, 1000, 2), half * p);
    EXPECT_GE(at("v_min", p, 0, 1000, 2), least * p);
    EXPECT_LT(at("v_min", p, 0, 1000, 2), least * p + 1);
  }
  EXPECT_THROW(at("zb_v", 4, 0, 8, 1), InvalidArgument);
  EXPECT_THROW(at("1f1b", 4, 4, 8, 1), InvalidArgument);
  EXPECT_THROW(at("fastest", 4, 0, 8, 1), InvalidArgument);
}

TEST(Errors, NameFieldValueAndWhatIsAllowed) {
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  Setting setting = setting_of(12);
  EXPECT_EQ(message([&] { estimate(gpt(10, 64, 8), setting); }),
            "[smdp] pipeline x virtual_stages = 12 is not valid; allowed: at most the 10 layers");
  setting = setting_of();
  setting.tensor = 3;
  EXPECT_EQ(message([&] { estimate(gpt(10, 64, 8), setting); }),
            "[smdp] tensor = 3 is not valid; allowed: a divisor of the 8 heads");
  setting = setting_of();
  setting.sequence = 0;
  EXPECT_EQ(message([&] { estimate(gpt(10, 64, 8), setting); }),
            "[smdp] sequence = 0 is not valid; allowed: an integer from 1 to 1073741824");
  setting = setting_of(2);
  setting.stage_sizes = {4, 5};
  EXPECT_EQ(message([&] { estimate(gpt(10, 64, 8), setting); }),
            "[smdp] stage_sizes = 2 sizes with the sum 9 is not valid; allowed: 2 sizes (pipeline x virtual_stages) "
            "with the sum 10");
  setting.tensor = 0;
  EXPECT_EQ(message([&] { layer_activations(gpt_layers(1, 64, 8), setting); }),
            "[smdp] tensor = 0 is not valid; allowed: an integer from 1 to 1048576");
  EXPECT_EQ(message([] { state_bytes("fp8", "none", 1); }),
            "[smdp] precision = 'fp8' is not valid; allowed: fp32, fp16, bf16, amp, megatron_bf16, megatron_fp16");
  EXPECT_EQ(message([] { state_bytes("fp16", "zero4", 1); }),
            "[smdp] sharding = 'zero4' is not valid; allowed: none, zero1, zero2, zero3");
}

using Random = std::mt19937_64;

std::int64_t nasty(Random& random) {
  const std::int64_t choices[] = {0,
                                  1,
                                  2,
                                  3,
                                  4,
                                  8,
                                  16,
                                  64,
                                  -1,
                                  12,
                                  40,
                                  4096,
                                  1LL << 31,
                                  1LL << 40,
                                  std::numeric_limits<std::int64_t>::max(),
                                  std::numeric_limits<std::int64_t>::min()};
  return choices[random() % std::size(choices)];
}

// Mostly small and honest, now and then not.
std::int64_t mostly(Random& random, std::int64_t honest) { return random() % 60 == 0 ? nasty(random) : honest; }

double nasty_amount(Random& random) {
  const double choices[] = {
      0, 1, 10.5, -1, 1e300, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  return choices[random() % std::size(choices)];
}

Setting random_setting(Random& random) {
  Setting setting;
  for (std::int64_t* field : {&setting.microbatch_size, &setting.microbatches, &setting.sequence, &setting.pipeline,
                              &setting.virtual_stages, &setting.tensor, &setting.data}) {
    *field = mostly(random, 1 + static_cast<std::int64_t>(random() % 2));
  }
  for (std::int64_t* field : {&setting.decoder_sequence, &setting.active_microbatches, &setting.sharding_degree,
                              &setting.activation_loading_horizon, &setting.bucket_bytes}) {
    *field = mostly(random, static_cast<std::int64_t>(random() % 2));
  }
  const char* schedules[] = {"1f1b", "gpipe", "interleaved_1f1b", "looped_bfs", "zb_v", "smp_interleaved", ""};
  const char* precisions[] = {"bf16", "fp32", "amp", "megatron_fp16", "x"};
  const char* shardings[] = {"none", "zero1", "zero2", "zero3", "x"};
  const char* checkpoints[] = {"none", "each", "group_2", "contiguous", "selective", "group_"};
  setting.schedule = schedules[random() % std::size(schedules)];
  setting.precision = precisions[random() % std::size(precisions)];
  setting.sharding = shardings[random() % std::size(shardings)];
  setting.checkpointing = checkpoints[random() % std::size(checkpoints)];
  setting.sequence_parallel = random() % 2 == 0;
  setting.flash_attention = random() % 2 == 0;
  setting.offload_activations = random() % 4 == 0;
  setting.offload_optimizer = random() % 2 == 0;
  if (random() % 16 == 0) {
    for (std::uint64_t i = random() % 5; i > 0; --i) setting.stage_sizes.push_back(nasty(random));
  }
  if (random() % 16 == 0) {
    for (std::uint64_t i = random() % 5; i > 0; --i) setting.in_flight.push_back(nasty_amount(random));
  }
  return setting;
}

void expect_sound(const Estimate& found, std::size_t& answered) {
  ++answered;
  for (const StageMemory& stage : found.stages) {
    for (const double bytes : {stage.parameters, stage.gradients, stage.optimizer, stage.activations, stage.embedding,
                               stage.logits, stage.transients, stage.buckets, stage.unsharded, stage.host}) {
      EXPECT_TRUE(std::isfinite(bytes) && bytes >= 0) << bytes;
    }
    EXPECT_LE(stage.total(), found.peak);
  }
}

TEST(AnyInput, GivesAnEstimateOrAnError) {
  Random random(7);
  std::size_t answered = 0;
  std::size_t refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const Setting setting = random_setting(random);
    try {
      if (random() % 2 == 0) {
        Architecture model = gpt(1 + static_cast<std::int64_t>(random() % 9), 64, 8);
        Layers& layers = model.layers[0];
        layers.count = std::min<std::int64_t>(mostly(random, layers.count), 4096);
        for (std::int64_t* field : {&model.hidden, &model.vocabulary, &model.outputs, &model.positions, &layers.hidden,
                                    &layers.heads, &layers.key_value_heads, &layers.ffn, &layers.head_size,
                                    &layers.norms, &layers.experts, &layers.experts_per_token, &layers.extra}) {
          if (random() % 100 == 0) *field = nasty(random);
        }
        layers.has_cross_attention = random() % 4 == 0;
        expect_sound(estimate(model, setting), answered);
      } else {
        Trace trace = trace_of(random() % 9);
        trace.microbatch_size = mostly(random, 1);
        if (!trace.units.empty() && random() % 4 == 0) trace.units[0].activations = nasty_amount(random);
        if (random() % 4 == 0) {
          trace.tied = {{random() % 2 == 0 ? 1 : nasty_amount(random), {0, static_cast<std::size_t>(nasty(random))}}};
        }
        expect_sound(estimate(trace, setting), answered);
      }
    } catch (const InvalidArgument& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).substr(0, 7), "[smdp] ");
    }
  }
  EXPECT_GT(answered, 1000U);
  EXPECT_GT(refused, 1000U);
}

}  // namespace
}  // namespace smdp::memory
