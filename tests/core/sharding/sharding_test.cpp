// Shards of random lists, and plans between random layouts: every byte exactly once.
#include "smdp/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "sharding/check.h"

namespace smdp::sharding {
namespace {

using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

std::vector<Parameter> random_parameters(Random& random) {
  std::vector<Parameter> list(static_cast<std::size_t>(pick(random, 0, 8)));
  for (Parameter& parameter : list) {
    parameter.outer = pick(random, 0, 9) == 0 ? 0 : pick(random, 1, 4);
    parameter.length = pick(random, 0, 17);
    parameter.inner = pick(random, 1, 9);
    parameter.element_size = std::int64_t{1} << pick(random, 0, 4);
    parameter.is_split = random() % 2 == 0;
  }
  return list;
}

Layout random_layout(Random& random, std::size_t parameters) {
  Layout layout{pick(random, 1, 4), pick(random, 1, 4), pick(random, 1, 5), {}, {}};
  for (std::size_t i = 0; i < parameters; ++i) {
    std::vector<std::int64_t> stages{pick(random, 0, layout.pipeline - 1)};
    if (stages[0] + 1 < layout.pipeline && random() % 4 == 0) stages.push_back(layout.pipeline - 1);
    layout.stages.push_back(stages);
  }
  if (random() % 2 == 0) {
    layout.ranks.resize(static_cast<std::size_t>(layout.pipeline * layout.tensor * layout.data));
    std::iota(layout.ranks.begin(), layout.ranks.end(), 0);
    std::shuffle(layout.ranks.begin(), layout.ranks.end(), random);
  }
  return layout;
}

std::int64_t ranks_of(const Layout& layout) { return layout.pipeline * layout.tensor * layout.data; }

TEST(ParameterShards, EveryByteOnceInEqualAlignedShards) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Parameter> list = random_parameters(random);
    const std::int64_t ranks = pick(random, 1, 9);
    const ParameterShards shards(list, ranks);
    std::vector<std::vector<int>> seen(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) seen[i].resize(static_cast<std::size_t>(size_of(list[i])));
    std::int64_t least = shards.bytes(0);
    std::int64_t most = 0;
    std::int64_t sum = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(shards.bytes(rank) == 0 || sum % 64 == 0);
      sum += shards.bytes(rank);
      least = std::min(least, shards.bytes(rank));
      most = std::max(most, shards.bytes(rank));
      std::int64_t last = 0;
      for (const Piece& piece : shards.pieces(rank)) {
        EXPECT_GE(piece.offset, last);
        last = piece.offset + piece.end - piece.begin;
        EXPECT_LE(last, shards.bytes(rank));
        EXPECT_EQ(piece.begin % list[piece.parameter].element_size, 0) << "no element is cut";
        EXPECT_EQ(piece.offset % list[piece.parameter].element_size, 0) << "and each is aligned";
        for (std::int64_t byte = piece.begin; byte < piece.end; ++byte) {
          ++seen[piece.parameter][static_cast<std::size_t>(byte)];
        }
      }
    }
    EXPECT_LE(most - least, 64);
    for (const std::vector<int>& bytes : seen) {
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST(ParameterShards, OwnersAreThePiecesTheOtherWayRound) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Parameter> list = random_parameters(random);
    const std::int64_t ranks = pick(random, 1, 9);
    const ParameterShards shards(list, ranks);
    std::vector<std::vector<Owner>> expected(list.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (const Piece& piece : shards.pieces(rank)) expected[piece.parameter].push_back({rank, piece});
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::vector<Owner> owners = shards.owners(static_cast<std::int64_t>(i));
      ASSERT_EQ(owners.size(), expected[i].size());
      for (std::size_t j = 0; j < owners.size(); ++j) {
        EXPECT_EQ(owners[j].rank, expected[i][j].rank);
        EXPECT_EQ(owners[j].piece.begin, expected[i][j].piece.begin);
        EXPECT_EQ(owners[j].piece.end, expected[i][j].piece.end);
        EXPECT_EQ(owners[j].piece.offset, expected[i][j].piece.offset);
      }
    }
  }
}

// A byte's value tells its parameter and place.
unsigned char value_of(std::size_t parameter, std::int64_t byte) {
  return static_cast<unsigned char>(parameter * 37 + static_cast<std::size_t>(byte) * 101 + 1);
}

using Memory = std::vector<std::vector<int>>;  // of each rank: values, -1 where nothing was written

Memory empty_memory(const std::vector<Parameter>& list, const Layout& layout) {
  Memory memory;
  for (std::int64_t rank = 0; rank < ranks_of(layout); ++rank) {
    memory.emplace_back(static_cast<std::size_t>(shard_bytes(list, layout, rank)), -1);
  }
  return memory;
}

Memory filled_memory(const std::vector<Parameter>& list, const Layout& layout) {
  Memory memory = empty_memory(list, layout);
  for (std::int64_t rank = 0; rank < ranks_of(layout); ++rank) {
    for (const Piece& piece : holdings(list, layout, rank)) {
      for (std::int64_t byte = piece.begin; byte < piece.end; ++byte) {
        int& cell = memory[static_cast<std::size_t>(rank)][static_cast<std::size_t>(piece.offset + byte - piece.begin)];
        EXPECT_EQ(cell, -1);
        cell = value_of(piece.parameter, byte);
      }
    }
  }
  return memory;
}

TEST(Layout, HoldsEveryByteAsOftenAsItHasCopies) {
  Random random(3);
  for (int round = 0; round < 500; ++round) {
    const std::vector<Parameter> list = random_parameters(random);
    const Layout layout = random_layout(random, list.size());
    std::vector<std::vector<std::size_t>> seen(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) seen[i].resize(static_cast<std::size_t>(size_of(list[i])));
    for (std::int64_t rank = 0; rank < ranks_of(layout); ++rank) {
      for (const Piece& piece : holdings(list, layout, rank)) {
        for (std::int64_t byte = piece.begin; byte < piece.end; ++byte) {
          ++seen[piece.parameter][static_cast<std::size_t>(byte)];
        }
      }
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::size_t copies =
          layout.stages[i].size() * (list[i].is_split ? 1 : static_cast<std::size_t>(layout.tensor));
      EXPECT_TRUE(std::all_of(seen[i].begin(), seen[i].end(), [&](std::size_t times) { return times == copies; }));
    }
  }
}

TEST(Reshard, GivesEveryTargetByteOnceAndRight) {
  Random random(4);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<Parameter> list = random_parameters(random);
    const Layout source = random_layout(random, list.size());
    const Layout target = random_layout(random, list.size());
    const Memory before = filled_memory(list, source);
    Memory after = empty_memory(list, target);
    std::pair<std::int64_t, std::int64_t> last{-1, -1};
    for (const Move& move : reshard(list, source, target)) {
      ASSERT_GT(move.bytes, 0);
      ASSERT_GT(move.rows, 0);
      EXPECT_LT(last, std::pair(move.target, move.target_offset)) << "sorted";
      last = {move.target, move.target_offset};
      for (std::int64_t i = 0; i < move.rows * move.bytes; ++i) {
        const std::int64_t row = i / move.bytes;
        const std::int64_t to = move.target_offset + row * move.target_stride + i % move.bytes;
        const std::int64_t from = move.source_offset + row * move.source_stride + i % move.bytes;
        int& cell = after[static_cast<std::size_t>(move.target)].at(static_cast<std::size_t>(to));
        ASSERT_EQ(cell, -1) << "written twice";
        cell = before[static_cast<std::size_t>(move.source)].at(static_cast<std::size_t>(from));
        ASSERT_NE(cell, -1) << "alignment was sent";
      }
    }
    EXPECT_EQ(after, filled_memory(list, target));
  }
}

TEST(Reshard, SameLayoutSendsNothingToOthers) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const std::vector<Parameter> list = random_parameters(random);
    const Layout layout = random_layout(random, list.size());
    for (const Move& move : reshard(list, layout, layout)) {
      EXPECT_EQ(move.source, move.target);
      EXPECT_EQ(move.source_offset, move.target_offset);
      EXPECT_EQ(move.source_stride, move.target_stride);
    }
  }
}

Layout tensor_layout(std::int64_t tensor, std::int64_t data = 1) { return {1, tensor, data, {{0}}, {}}; }

TEST(Reshard, RowsOfAMatrixAreOneMove) {
  const std::vector<Parameter> columns{{4096, 64, 2, 4, true}};
  const std::vector<Move> cut = reshard(columns, tensor_layout(1), tensor_layout(2));
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_EQ(cut[1].target, 1);
  EXPECT_EQ(cut[1].source_offset, 32 * 8);
  EXPECT_EQ(cut[1].source_stride, 64 * 8);
  EXPECT_EQ(cut[1].target_stride, 32 * 8);
  EXPECT_EQ(cut[1].rows, 4096);
  EXPECT_EQ(cut[1].bytes, 32 * 8);
  EXPECT_EQ(reshard(columns, tensor_layout(2), tensor_layout(1)).size(), 2U) << "rows of two ranks in turn";
  EXPECT_EQ(reshard(columns, tensor_layout(4), tensor_layout(2)).size(), 4U);
  // Shards end within rows: a part of one before, and behind.
  EXPECT_LE(reshard(columns, tensor_layout(4, 3), tensor_layout(2, 5)).size(), 3U * 4 * (3 + 5));
}

// A plan of half a million rows, and more pieces than fit.
TEST(Reshard, ManyRowsTakeLittleMemory) {
  const Parameter thin{1 << 19, 8, 1, 4, true};
  EXPECT_EQ(reshard({thin}, tensor_layout(8), tensor_layout(4)).size(), 8U);
  Parameter thinner = thin;
  thinner.outer = (1 << 19) + 1;
  EXPECT_THROW(reshard({thinner}, tensor_layout(8), tensor_layout(4)), InvalidArgument);
  // Many stages that share it take every row each.
  std::vector<std::int64_t> all(1024);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_THROW(reshard({thin}, tensor_layout(8), {1024, 1, 1, {all}, {}}), InvalidArgument);
}

TEST(Reshard, WrongInputIsRefused) {
  const std::vector<Parameter> one{{1, 8, 1, 4, false}};
  EXPECT_THROW(ParameterShards(one, 0), InvalidArgument);
  EXPECT_THROW(ParameterShards({{1, 8, 1, 3, false}}, 2), InvalidArgument);
  EXPECT_THROW(ParameterShards({{1, -8, 1, 4, false}}, 2), InvalidArgument);
  EXPECT_THROW(ParameterShards({{std::int64_t{1} << 40, std::int64_t{1} << 40, 1, 4, false}}, 2), InvalidArgument);
  EXPECT_THROW(ParameterShards({{std::int64_t{1} << 59, std::int64_t{1} << 59, 0, 4, false}}, 2), InvalidArgument);
  EXPECT_THROW(ParameterShards(one, 2).pieces(2), InvalidArgument);
  EXPECT_THROW(ParameterShards(one, 2).owners(1), InvalidArgument);
  EXPECT_THROW(ParameterShards(one, 2).owners(-1), InvalidArgument);
  EXPECT_THROW(ParameterShards({}, 2).owners(0), InvalidArgument);
  const Layout good{1, 1, 2, {{0}}, {}};
  EXPECT_EQ(reshard(one, good, good).size(), 1U);
  for (const Layout& bad : {Layout{0, 1, 1, {{0}}, {}}, Layout{1, 1, 1, {}, {}}, Layout{1, 1, 1, {{}}, {}},
                            Layout{1, 1, 1, {{1}}, {}}, Layout{2, 1, 1, {{1, 0}}, {}}, Layout{1, 1, 2, {{0}}, {0, 0}},
                            Layout{1, 1, 2, {{0}}, {0}}, Layout{1 << 20, 1 << 20, 1 << 20, {{0}}, {}}}) {
    EXPECT_THROW(reshard(one, bad, good), InvalidArgument);
    EXPECT_THROW(reshard(one, good, bad), InvalidArgument);
  }
  const std::vector<Parameter> thin{{std::int64_t{1} << 40, 8, 1, 1, true}};
  const std::vector<Parameter> many(100, {1, 8, 1, 4, false});
  EXPECT_THROW(shard_bytes(many, {1, 1 << 20, 1, std::vector<std::vector<std::int64_t>>(100, {0}), {}}, 0),
               InvalidArgument);
  EXPECT_THROW(reshard(thin, {1, 8, 1, {{0}}, {}}, good), InvalidArgument);
}

}  // namespace
}  // namespace smdp::sharding
