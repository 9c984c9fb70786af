// Rank 0's program may end as soon as it has its group, or an error, and takes the store with it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ranks.h"
#include "smdp/error.h"
#include "smdp/internal/group_setup.h"

namespace smdp {
namespace {

using test::Layout;
using test::quick_options;
using test::world_size;

// Lives as long as rank 0; the other ranks are slow to read from it.
class StoreOfRankZero final : public Store {
 public:
  // silent: a rank that says no farewell.
  explicit StoreOfRankZero(int silent = -1) : silent_(silent) {}

  void end() { has_ended_ = true; }
  // The silent rank has come so far.
  bool is_awaited() const { return is_awaited_; }

  std::shared_ptr<Store> view_of(int rank) {
    class View final : public Store {
     public:
      View(StoreOfRankZero& store, bool is_slow) : store_(store), is_slow_(is_slow) {}
      void set(const std::string& key, const std::string& value) override {
        if (key.ends_with("departure/" + std::to_string(store_.silent_))) {
          store_.is_awaited_ = true;
        } else {
          store_.set(key, value);
        }
      }
      std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
        std::string value = store_.get(key, timeout);
        if (is_slow_) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        store_.check_life(key);
        return value;
      }
      bool check(const std::string& key) override { return store_.check(key); }

     private:
      StoreOfRankZero& store_;
      const bool is_slow_;
    };
    return std::make_shared<View>(*this, rank != 0);
  }

  void set(const std::string& key, const std::string& value) override {
    check_life(key);
    values_->set(key, value);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    check_life(key);
    return values_->get(key, timeout);
  }
  bool check(const std::string& key) override {
    check_life(key);
    return values_->check(key);
  }

 private:
  void check_life(const std::string& key) const {
    if (has_ended_) throw Error("[smdp] rank 0 has ended, and the store with '" + key + "'");
  }

  const std::shared_ptr<Store> values_ = make_memory_store();
  const int silent_;
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> is_awaited_{false};
};

// What each rank says: of what `body` throws, or "". Rank 0 ends after it. absent: ranks that do not come.
std::vector<std::string> run_until_rank_zero_ends(const Layout& layout, const std::function<void(Group& group)>& body,
                                                  const std::function<void(int rank, GroupOptions&)>& set_up,
                                                  int absent = 0) {
  StoreOfRankZero store;
  const int size = world_size(layout);
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  int rank = 0;
  for (std::size_t host = 0; host < layout.size(); ++host) {
    for (int i = 0; i < layout[host]; ++i, ++rank) {
      if (rank >= size - absent) continue;
      threads.emplace_back([&, rank, host] {
        GroupOptions options = quick_options();
        if (layout.size() > 1) options.host_id = "host" + std::to_string(host);
        set_up(rank, options);
        std::shared_ptr<Group> group;
        try {
          group = std::make_shared<Group>(store.view_of(rank), rank, size, options);
          body(*group);
        } catch (const Error& error) {
          said[static_cast<std::size_t>(rank)] = error.what();
        }
        if (rank == 0) store.end();
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

void change_nothing(int /*rank*/, GroupOptions& /*options*/) {}

class Farewell : public testing::TestWithParam<Layout> {};

TEST_P(Farewell, AllHaveTheirGroup) {
  const std::vector<std::string> said = run_until_rank_zero_ends(GetParam(), [](Group&) {}, change_nothing);
  for (const std::string& text : said) EXPECT_EQ(text, "");
}

TEST_P(Farewell, AllHaveTheirPartWhereRankZeroHasNone) {
  const std::vector<std::string> said = run_until_rank_zero_ends(
      GetParam(), [](Group& group) { group.split(group.rank() == 0 ? -1 : 1, group.rank(), "part"); }, change_nothing);
  for (const std::string& text : said) EXPECT_EQ(text, "");
}

TEST_P(Farewell, AllReadWhoIsMissing) {
  const std::vector<std::string> said = run_until_rank_zero_ends(
      GetParam(), [](Group&) {}, [](int, GroupOptions& options) { options.init_timeout = std::chrono::seconds(2); }, 1);
  const std::string missing = "missing: " + std::to_string(world_size(GetParam()) - 1);
  for (std::size_t rank = 0; rank + 1 < said.size(); ++rank) {
    EXPECT_NE(said[rank].find(missing), std::string::npos) << said[rank];
  }
}

TEST_P(Farewell, AllReadWhatDiffers) {
  const std::vector<std::string> said = run_until_rank_zero_ends(
      GetParam(), [](Group&) {},
      [](int rank, GroupOptions& options) { options.algorithm = rank == 1 ? "two_shot" : "auto"; });
  for (const std::string& text : said) EXPECT_NE(text.find("SMDP_ALGORITHM is 'auto'"), std::string::npos) << text;
}

TEST(RankZero, WaitsNotForEverAndCtrlCEndsIt) {
  for (const bool is_interrupted : {false, true}) {
    StoreOfRankZero store(1);
    std::thread other([&] {
      Group group(store.view_of(1), 1, 2, quick_options());
      if (!is_interrupted) group.barrier();
    });
    GroupSetup setup(quick_options());
    setup.interrupted = [&] { return is_interrupted && store.is_awaited(); };
    const auto begin = std::chrono::steady_clock::now();
    if (is_interrupted) {
      EXPECT_THROW(Group(setup, store.view_of(0), 0, 2), ClosedError);
    } else {
      Group(setup, store.view_of(0), 0, 2).barrier();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(is_interrupted ? 2000 : 4500));
    other.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Farewell, testing::Values(Layout{3}, Layout{1, 1, 1}, Layout{2, 1}));

}  // namespace
}  // namespace smdp
