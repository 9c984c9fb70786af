// Ranks that disagree, on one host and on several: an error on every rank, soon, naming both sides.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/store.h"

namespace smdp::test {
namespace {

using Body = std::function<void(Group&)>;

// Every rank's body ends in a MismatchError within 5 s that contains the texts.
void expect_mismatch(const Layout& layout, const Body& body, const std::vector<std::string>& texts) {
  run(layout, [&](Group& group) {
    const auto start = std::chrono::steady_clock::now();
    try {
      body(group);
      group.barrier();  // where a rank could finish its part alone, the next operation finds it
      ADD_FAILURE() << "rank " << group.rank() << " saw no mismatch, layout " << describe(layout);
    } catch (const MismatchError& error) {
      for (const std::string& text : texts) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << text << " not in: " << error.what();
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << describe(layout);
    // The group goes on if all ranks have heard of it in that very call; else later calls repeat the error.
    try {
      group.barrier();
    } catch (const MismatchError&) {
      EXPECT_GT(layout.size(), 1U);
    }
    group.shutdown();
  });
}

class Mismatch : public testing::TestWithParam<Layout> {
 protected:
  static void expect(const Body& body, const std::vector<std::string>& texts) {
    try {
      expect_mismatch(GetParam(), body, texts);
    } catch (const Error&) {
      // run()'s own barrier, on a group that has failed as it should
    }
  }

  // Of several hosts with several ranks, those that agree with all whom they talk to may end before they hear of it.
  static bool has_bystanders() { return GetParam().size() > 1 && GetParam()[0] > 1; }

  static void expect_at_once(const Body& body) {
    try {
      run(GetParam(), [&body](Group& group) { EXPECT_THROW(body(group), MismatchError); });
    } catch (const Error&) {
      // likewise
    }
  }
};

TEST_P(Mismatch, ShapeOfAllReduce) {
  expect(
      [](Group& group) {
        std::vector<float> data(group.rank() == 0 ? 512 : 256);
        group.all_reduce(data.data(), data.data(), std::vector<std::int64_t>{static_cast<std::int64_t>(data.size())},
                         DType::kFloat32, ReduceOp::kSum);
      },
      {"rank 0", "[512]", "[256]"});
}

TEST_P(Mismatch, RootOfReduce) {
  expect(
      [](Group& group) {
        std::vector<float> data(8);
        // Both wait for each other's part: nobody's data tells them apart.
        group.reduce(data.data(), data.data(), std::vector<std::int64_t>{8}, DType::kFloat32, ReduceOp::kSum,
                     group.rank() % 2);
      },
      {"to rank 0", "to rank 1"});
}

// Every rank is a root: none waits for another's data. What the one that has more of it leaves behind must not be taken
// for the next operation's.
TEST_P(Mismatch, RootsOfBroadcastsOfDifferentSizes) {
  expect(
      [](Group& group) {
        std::vector<float> data(group.rank() == 0 ? 1024 : 131'072, 7.0F);
        group.broadcast(data.data(), std::vector<std::int64_t>{static_cast<std::int64_t>(data.size())}, DType::kFloat32,
                        group.rank());
        if (group.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::vector<float> ones(1024, 1.0F);
        group.all_reduce(ones.data(), ones.data(), std::vector<std::int64_t>{1024}, DType::kFloat32, ReduceOp::kSum);
      },
      {"broadcast"});
}

TEST_P(Mismatch, Operation) {
  expect(
      [](Group& group) {
        std::vector<float> data(8);
        const std::vector<std::int64_t> shape{8};
        if (group.rank() == 0) {
          group.broadcast(data.data(), shape, DType::kFloat32, 0);
        } else {
          group.all_reduce(data.data(), data.data(), shape, DType::kFloat32, ReduceOp::kSum);
        }
      },
      {"broadcast", "all_reduce"});
}

// Each rank moves six elements per rank; those of rank 0 lie as [.., 2, 3], those of the others as [.., 3, 2].
class Blocks {
 public:
  explicit Blocks(const Group& group)
      : size(static_cast<std::size_t>(group.size())), in(6 * size, 1), out(6 * size, 0), rank0(group.rank() == 0) {}

  std::vector<ConstBuffer> sources() const {
    std::vector<ConstBuffer> all;
    for (std::size_t i = 0; i < size; ++i) all.push_back({in.data() + 6 * i, 6});
    return all;
  }
  std::vector<Buffer> targets() {
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < size; ++i) all.push_back({out.data() + 6 * i, 6});
    return all;
  }
  Shapes block() const { return {rank0 ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{3, 2}}; }
  // Of all blocks in one tensor.
  Shapes whole() const {
    const auto n = static_cast<std::int64_t>(size);
    return {rank0 ? std::vector<std::int64_t>{2 * n, 3} : std::vector<std::int64_t>{3 * n, 2}};
  }
  Shapes list() const { return Shapes(size, block().front()); }
  // A list of different shapes, of which the last has as many elements on all ranks.
  Shapes uneven() const {
    Shapes all(size, {6});
    all.back() = rank0 ? std::vector<std::int64_t>{1, 6} : std::vector<std::int64_t>{6, 1};
    return all;
  }

  const std::size_t size;
  std::vector<float> in;
  std::vector<float> out;
  const bool rank0;
};

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "float32[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Call named(const std::string& name) {
  Call call;
  call.name = name;
  return call;
}

TEST_P(Mismatch, Name) {
  const auto reduce_as = [](const std::string& of_rank_0, const std::string& of_others) {
    return [=](Group& group) {
      float value = 1;
      group.all_reduce(&value, &value, {}, DType::kFloat32, ReduceOp::kSum, 1.0,
                       named(group.rank() == 0 ? of_rank_0 : of_others));
    };
  };
  expect(reduce_as("loss", "accuracy"), {"all_reduce 'loss' #1 float32", "all_reduce 'accuracy' #1 float32"});
  expect(reduce_as("loss", ""), {"all_reduce 'loss' #1 float32", "all_reduce #1 float32"});
  const std::string end(60, 'x');
  expect(reduce_as("a" + end, "b" + end),
         {"'" + end.substr(4) + "'", "with a different name, beyond what is shown here"});
  // Cut between characters: each takes two bytes here, and the quotation mark must not follow half of one.
  std::string wide;
  for (int i = 0; i < 40; ++i) wide += "\u00fc";
  expect(reduce_as("a" + wide + "z", "b" + wide + "z"), {"'" + wide.substr(0, 54) + "z'"});
}

TEST_P(Mismatch, ShapeOfAllGather) {
  for (const bool is_list : {false, true}) {
    expect(
        [is_list](Group& group) {
          Blocks blocks(group);
          group.all_gather({blocks.in.data(), 6}, blocks.targets(), DType::kFloat32, {},
                           is_list ? blocks.list() : blocks.block());
        },
        {"float32[2, 3]", "float32[3, 2]"});
  }
}

TEST_P(Mismatch, ShapesOfAnUnevenAllGather) {
  expect(
      [](Group& group) {
        Blocks blocks(group);
        group.all_gather({blocks.in.data(), 6}, blocks.targets(), DType::kFloat32, {}, blocks.uneven());
      },
      {"float32 in blocks of 6, 6", "with a different shape, beyond what is shown here"});
}

TEST_P(Mismatch, ShapeOfReduceScatter) {
  const auto n = static_cast<std::int64_t>(world_size(GetParam()));
  for (const bool is_list : {false, true}) {
    expect(
        [is_list](Group& group) {
          Blocks blocks(group);
          group.reduce_scatter(blocks.sources(), {blocks.out.data(), 6}, DType::kFloat32, ReduceOp::kSum, 1.0, {},
                               is_list ? blocks.list() : blocks.whole());
        },
        {text_of({2 * n, 3}), text_of({3 * n, 2})});
  }
}

TEST_P(Mismatch, ShapeOfAllToAll) {
  const auto n = static_cast<std::int64_t>(world_size(GetParam()));
  expect(
      [](Group& group) {
        Blocks blocks(group);
        group.all_to_all(blocks.sources(), blocks.targets(), DType::kFloat32, {}, blocks.whole());
      },
      {text_of({2 * n, 3}), text_of({3 * n, 2})});
}

TEST_P(Mismatch, ShapeOfGather) {
  expect(
      [](Group& group) {
        Blocks blocks(group);
        group.gather({blocks.in.data(), 6}, blocks.targets(), DType::kFloat32, 0, {}, blocks.block());
      },
      {"float32[:, 3]", "float32[:, 2]"});
}

TEST_P(Mismatch, ShapeOfScatter) {
  expect(
      [](Group& group) {
        Blocks blocks(group);
        group.scatter(blocks.sources(), {blocks.out.data(), 6}, DType::kFloat32, 0, {}, blocks.block());
      },
      {"float32[:, 3]", "float32[:, 2]"});
}

TEST_P(Mismatch, NinthDimension) {
  expect(
      [](Group& group) {
        std::vector<float> data(6);
        std::vector<std::int64_t> shape(10, 1);
        shape[8] = group.rank() == 0 ? 2 : 3;
        shape[9] = 6 / shape[8];
        group.broadcast(data.data(), shape, DType::kFloat32, 0);
      },
      {"[1, 1, 1, 1, 1, 1, 1, 1, ...]", "with a different shape, beyond what is shown here"});
}

TEST_P(Mismatch, CountsOfAnUnevenAllGather) {
  expect(
      [](Group& group) {
        std::vector<float> data(64);
        std::vector<Buffer> targets;
        for (int rank = 0; rank < group.size(); ++rank) {
          targets.push_back({data.data() + 8 * rank, static_cast<std::size_t>(rank + (group.rank() == 0 ? 1 : 2))});
        }
        const Buffer own = targets[static_cast<std::size_t>(group.rank())];
        group.all_gather({own.data, own.count}, targets, DType::kFloat32);
      },
      {"in blocks of 1, 2", "in blocks of 2, 3"});
}

TEST_P(Mismatch, OfASplit) {
  expect(
      [](Group& group) {
        if (group.rank() == 0) {
          group.split(0, 0, "part");
        } else {
          group.barrier();
        }
      },
      {"split #", "barrier #"});
}

// Without an operation after it that would tell who only gives.
TEST_P(Mismatch, OfARootIsToldAtOnce) {
  expect_at_once([](Group& group) {
    std::vector<float> data(4);
    const std::int64_t extent = group.rank() == 0 ? 4 : 2;
    group.broadcast(data.data(), std::vector<std::int64_t>{extent}, DType::kFloat32, 0);
  });
  if (has_bystanders()) return;
  expect_at_once([](Group& group) {
    std::vector<float> data(4);
    group.broadcast(data.data(), std::vector<std::int64_t>{4}, DType::kFloat32, group.rank() == 0 ? 0 : 1);
  });
}

TEST_P(Mismatch, OfAReduceIsToldAtOnce) {
  if (has_bystanders()) return;
  expect_at_once([](Group& group) {
    std::vector<float> data(4);
    std::vector<float> out(4);
    const std::int64_t extent = group.rank() == 0 ? 4 : 2;
    group.reduce(data.data(), out.data(), std::vector<std::int64_t>{extent}, DType::kFloat32, ReduceOp::kSum, 0);
  });
}

// What may differ: the first extent of a gather, who says nothing, one tensor here and a list there.
TEST_P(Mismatch, ShapesThatFit) {
  run(GetParam(), [](Group& group) {
    Blocks blocks(group);
    const std::size_t rows = static_cast<std::size_t>(group.rank()) % 2 + 1;
    std::vector<Buffer> targets = blocks.targets();
    for (std::size_t i = 0; i < blocks.size; ++i) targets[i].count = 3 * (i % 2 + 1);
    group.gather({blocks.in.data(), 3 * rows}, targets, DType::kFloat32, 0, {}, {{static_cast<std::int64_t>(rows), 3}});
    group.all_gather({blocks.in.data(), 6}, blocks.targets(), DType::kFloat32, {},
                     blocks.rank0 ? Shapes{} : blocks.block());
    const auto n = static_cast<std::int64_t>(blocks.size);
    group.reduce_scatter(blocks.sources(), {blocks.out.data(), 6}, DType::kFloat32, ReduceOp::kSum, 1.0, {},
                         blocks.rank0 ? Shapes{{2 * n, 3}} : Shapes(blocks.size, {2, 3}));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Mismatch, testing::Values(Layout{2}, Layout{1, 1}, Layout{3}, Layout{2, 2}));

// What error a rank's group of the ranks from 1 on gives; empty on rank 0.
std::string error_in_part(Group& group, const std::function<void(Group&)>& body) {
  const std::unique_ptr<Group> part = group.split(group.rank() == 0 ? -1 : 1, group.rank(), "part");
  std::string text;
  if (part) {
    try {
      body(*part);
      part->barrier();
    } catch (const Error& error) {
      text = error.what();
    }
  }
  group.barrier();
  return text;
}

void expect_all_in(const std::vector<std::string>& parts, const std::string& text) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
}

class PartOfTheWorld : public testing::TestWithParam<Layout> {};

TEST_P(PartOfTheWorld, IsNamedWithTheRanksOfBoth) {
  run(GetParam(), [](Group& group) {
    const std::string text = error_in_part(group, [](Group& part) {
      std::vector<float> data(static_cast<std::size_t>(part.rank() + 1));
      part.broadcast(data.data(), std::vector<std::int64_t>{part.rank() + 1}, DType::kFloat32, 0);
    });
    if (group.rank() == 0) return;
    const std::string own = std::to_string(group.rank() - 1);
    expect_all_in({"[smdp] rank " + own + " of 2 in group 'world/part-0/1' (rank " + std::to_string(group.rank()) +
                       " of the world, host ",
                   "(rank " + std::to_string(3 - group.rank()) + " of the world, host ", " of the group (rank "},
                  text);
  });
}

TEST_P(PartOfTheWorld, NamesWhoSendsMoreThanIsExpected) {
  run(GetParam(), [](Group& group) {
    const std::string text = error_in_part(group, [](Group& part) {
      std::vector<float> data(4);
      const std::size_t count = part.rank() == 0 ? 2 : 1;
      const std::vector<ConstBuffer> in{{data.data(), count}, {data.data(), count}};
      std::vector<float> results(4);
      const std::vector<Buffer> out{{results.data() + 2, count}, {results.data(), count}};
      part.all_to_all(in, out, DType::kFloat32);
    });
    if (group.rank() == 0) return;
    expect_all_in({"in group 'world/part-0/1' (rank ", "The counts of a sender must equal"}, text);
    EXPECT_TRUE(text.find("expects 2 elements from rank 1 of the group (rank 2 of the world, host ") != text.npos ||
                text.find("expects 1 elements from rank 0 of the group (rank 1 of the world, host ") != text.npos)
        << text;
    expect_all_in({" in all_to_all #1 float32"}, text);
  });
}

TEST_P(PartOfTheWorld, NamesWhoDidNotCome) {
  run(GetParam(), [](Group& group) {
    const std::string text = error_in_part(group, [](Group& part) {
      if (part.rank() == 1) return part.shutdown("no time");
      Call call;
      call.timeout = std::chrono::seconds(5);
      part.barrier(call);
    });
    if (group.rank() == 1) {
      expect_all_in({"rank 0 of 2 in group 'world/part-0/1' (rank 1 of the world, host ",
                     "rank 1 of the group (rank 2 of the world, host ", "has left the group: no time"},
                    text);
    }
  });
}

// As a reducer makes one: nobody knows it by another name.
TEST_P(PartOfTheWorld, IsNoneWithAllRanks) {
  run(GetParam(), [](Group& group) {
    const std::unique_ptr<Group> copy = group.split(0, group.rank(), "copy");
    try {
      std::vector<float> data(3);
      copy->broadcast(data.data(), std::vector<std::int64_t>{group.rank() + 1}, DType::kFloat32, 0);
      copy->barrier();
      ADD_FAILURE() << "no mismatch";
    } catch (const MismatchError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("rank " + std::to_string(group.rank()) + " of 3 (host "), std::string::npos) << text;
      EXPECT_EQ(text.find("of the world"), std::string::npos) << text;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PartOfTheWorld, testing::Values(Layout{3}, Layout{1, 1, 1}, Layout{2, 1}));

// One rank's view of a store: `before` is called before it writes any key of a group whose name holds "part".
class WatchedStore final : public Store {
 public:
  WatchedStore(std::shared_ptr<Store> base, std::function<void()> before)
      : base_(std::move(base)), before_(std::move(before)) {}
  void set(const std::string& key, const std::string& value) override {
    if (key.find("/part-") != std::string::npos) before_();
    base_->set(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return base_->get(key, timeout);
  }
  bool check(const std::string& key) override { return base_->check(key); }

 private:
  const std::shared_ptr<Store> base_;
  const std::function<void()> before_;
};

// What split() throws on each of three ranks, of which the last is in a group of its own color if `is_apart`. before:
// runs on it once all have agreed on the new groups, before it comes to its own.
std::vector<std::string> failures_of_split(const Layout& layout, bool is_apart,
                                           const std::function<void(Group&, int rank)>& before) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Group* own = nullptr;
      GroupOptions options = quick_options();
      if (layout.size() > 1) options.host_id = "host" + std::to_string(rank);
      Group group(std::make_shared<WatchedStore>(store, [&] { before(*own, rank); }), rank, 3, options);
      own = &group;
      const auto start = std::chrono::steady_clock::now();
      try {
        const std::unique_ptr<Group> part = group.split(is_apart && rank == 2 ? 1 : 0, 0, "part");
        part->barrier();
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

class Split : public testing::TestWithParam<Layout> {};

TEST_P(Split, EndsWhenARankLeavesBeforeItComes) {
  const std::vector<std::string> texts = failures_of_split(GetParam(), false, [](Group& group, int rank) {
    if (rank != 2) return;
    group.shutdown("it had enough");
    throw ClosedError("[smdp] gone");
  });
  for (const int rank : {0, 1}) {
    expect_all_in({"rank 2 (host ", "has left the group: it had enough"}, texts[static_cast<std::size_t>(rank)]);
  }
}

TEST_P(Split, EndsWhenTheGroupFails) {
  const std::vector<std::string> texts = failures_of_split(GetParam(), false, [](Group& group, int rank) {
    if (rank != 2) return;
    group.abort("it had enough");
    throw ClosedError("[smdp] gone");
  });
  for (const std::string& text : texts) expect_all_in({"aborted: it had enough"}, text);
}

TEST_P(Split, GoesOnWithoutARankOfAnotherPart) {
  bool has_slept = false;  // of rank 1
  const std::vector<std::string> texts = failures_of_split(GetParam(), true, [&](Group& group, int rank) {
    if (rank == 2) group.shutdown();
    if (rank != 1 || std::exchange(has_slept, true)) return;
    std::this_thread::sleep_for(std::chrono::seconds(3));
  });
  EXPECT_EQ(texts, std::vector<std::string>(3));
}

INSTANTIATE_TEST_SUITE_P(Layouts, Split, testing::Values(Layout{3}, Layout{1, 1, 1}));

// What the group's constructor throws on each rank, which is on a host of its own unless `one_host`.
std::vector<std::string> refusals(const std::function<void(GroupOptions&, int rank)>& change, bool one_host = false) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::string> texts(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options = quick_options();
      if (!one_host) options.host_id = "host" + std::to_string(rank);
      change(options, rank);
      try {
        Group group(store, rank, 3, options);
        group.barrier();
      } catch (const ConfigError& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = std::string("another error: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

void expect_refusals(const std::vector<std::string>& texts, const std::string& difference) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    expect_all_in(
        {"[smdp] rank " + std::to_string(rank) + " of 3 (host host" + std::to_string(rank) + "): " + difference},
        texts[rank]);
  }
}

class Deadline : public testing::TestWithParam<Layout> {};

TEST_P(Deadline, OfAnOperationThatWaitsForOneBeforeIt) {
  const auto body = [](Group& group) {
    if (group.rank() != 0) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return;
    }
    std::vector<float> data(8);
    const std::vector<std::int64_t> shape{8};
    Call call;
    call.async = true;
    const auto begin = std::chrono::steady_clock::now();
    group.all_reduce(data.data(), data.data(), shape, DType::kFloat32, ReduceOp::kSum, 1.0, call);
    call.timeout = std::chrono::milliseconds(500);
    const Group::Handle second =
        group.all_reduce(data.data(), data.data(), shape, DType::kFloat32, ReduceOp::kSum, 1.0, call);
    try {
      second->wait();
      ADD_FAILURE() << "it did not end";
    } catch (const TimeoutError& error) {
      const std::string text = error.what();
      expect_all_in({"timed out after 0.5 s: it waits for the end of all_reduce #1 ", ": rank 1 (host ",
                     " has not called it: it has called no collective yet"},
                    text);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  };
  EXPECT_THROW(run(GetParam(), body), Error);  // the others find the group closed
}

TEST_P(Deadline, DoesNotCountTheTimeOfThoseBeforeIt) {
  GroupOptions options = quick_options();
  options.timeout = std::chrono::seconds(2);
  run(
      GetParam(),
      [](Group& group) {
        std::vector<float> data(8);
        Call call;
        call.async = true;
        std::vector<Group::Handle> handles;
        for (int i = 0; i < 10; ++i) {
          if (group.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
          handles.push_back(group.all_reduce(data.data(), data.data(), std::vector<std::int64_t>{8}, DType::kFloat32,
                                             ReduceOp::kSum, 1.0, call));
        }
        for (const Group::Handle& handle : handles) handle->wait();
      },
      options);
}

class Departure : public testing::TestWithParam<Layout> {};

TEST_P(Departure, OfAllOthersEndsAReceiveFromAnybody) {
  const auto body = [](Group& group) {
    if (group.rank() != 0) return group.shutdown();
    float value = 0;
    const auto begin = std::chrono::steady_clock::now();
    try {
      group.recv({&value, 1}, DType::kFloat32, -1, 7);
      ADD_FAILURE() << "it did not end";
    } catch (const PeerLostError& error) {
      expect_all_in({"a message with tag 7 from any rank cannot be exchanged: rank 1 (host ", " has left the group"},
                    error.what());
      EXPECT_EQ(static_cast<int>(error.ranks().size()), group.size() - 1);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  };
  EXPECT_THROW(run(GetParam(), body), Error);  // the others have left
}

INSTANTIATE_TEST_SUITE_P(Layouts, Departure, testing::Values(Layout{2}, Layout{1, 1}, Layout{2, 1}),
                         [](const auto& info) { return "Hosts" + std::to_string(info.index); });

INSTANTIATE_TEST_SUITE_P(Layouts, Deadline, testing::Values(Layout{2}, Layout{1, 1}, Layout{3}),
                         [](const auto& info) { return "Hosts" + std::to_string(info.index); });

TEST(Settings, ThatDifferAreRefusedOnAllRanks) {
  const auto start = std::chrono::steady_clock::now();
  expect_refusals(refusals([](GroupOptions& options, int rank) { options.algorithm = rank == 1 ? "ring" : "auto"; }),
                  "SMDP_ALGORITHM is 'auto' on rank 0 (host host0), but 'ring' on rank 1 (host host1).");
  expect_refusals(refusals([](GroupOptions& options, int rank) { options.strict = rank == 0; }),
                  "SMDP_DETERMINISTIC is 'strict' on rank 0 (host host0), but 'not strict' on rank 1 (host host1).");
  expect_refusals(refusals([](GroupOptions& options, int rank) { options.streams = rank == 2 ? 4 : 0; }),
                  "SMDP_STREAMS is 'not set' on rank 0 (host host0), but '4' on rank 2 (host host2).");
  expect_refusals(refusals([](GroupOptions& options, int rank) { options.secret = rank == 2 ? "b" : "a"; }),
                  "SMDP_SECRET is 'a secret' on rank 0 (host host0), but 'another secret' on rank 2 (host host2).");
  expect_refusals(refusals([](GroupOptions& options, int rank) { options.secret = rank == 0 ? "a" : ""; }),
                  "SMDP_SECRET is 'a secret' on rank 0 (host host0), but 'not set' on rank 1 (host host1).");
  expect_refusals(refusals([](GroupOptions& options, int rank) { options.secret = rank == 1 ? "a" : ""; }),
                  "SMDP_SECRET is 'not set' on rank 0 (host host0), but 'a secret' on rank 1 (host host1).");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Settings, OfStreamsDoNotMatterOnOneHost) {
  for (const std::string& text : refusals([](GroupOptions& options, int rank) { options.streams = rank; }, true)) {
    EXPECT_EQ(text, "");
  }
}

}  // namespace
}  // namespace smdp::test
