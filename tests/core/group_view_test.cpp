// One rank that cannot take part ends the waits of all in the store.
#include "rendezvous/group_view.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/open_files.h"
#include "common/shortage.h"

namespace smdp {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class GroupViews : public testing::Test {
 protected:
  const std::shared_ptr<Store> store_ = make_memory_store();
  GroupView here_{store_, "g", {}};
  GroupView there_{store_, "g", {}};
};

std::string error_of(GroupView& view) {
  try {
    view.get("never", seconds(30));
  } catch (const ShortageError& error) {
    return error.what();
  }
  return "";
}

TEST_F(GroupViews, AFailureEndsWaitsThatHaveBegunAndOnesThatBeginLater) {
  const auto start = steady_clock::now();
  std::thread other([this] { EXPECT_EQ(error_of(there_), "no descriptors"); });
  here_.fail("no descriptors");
  here_.fail("what comes of that");
  other.join();
  EXPECT_EQ(error_of(there_), "no descriptors");
  EXPECT_LT(steady_clock::now() - start, seconds(5));
}

TEST_F(GroupViews, WhatIsThereCanBeReadAfterAFailure) {
  here_.set("key", "value");
  here_.fail("no descriptors");
  EXPECT_EQ(there_.get("key", seconds(30)), "value");
  EXPECT_THROW(there_.get_unless("never", std::chrono::milliseconds(10), {}), TimeoutError);
}

TEST_F(GroupViews, OtherGroupsGoOn) {
  here_.fail("no descriptors");
  GroupView other(store_, "g2", {});
  EXPECT_THROW(other.get("never", std::chrono::milliseconds(10)), TimeoutError);
}

TEST_F(GroupViews, WhatThisProcessLacksEndsAWaitWhereItMeets) {
  note_shortage(ShortageError("nobody meets"));
  EXPECT_NO_THROW(here_.throw_failure());
  prepare_open_files();
  note_shortage(ShortageError("no thread"));
  EXPECT_EQ(error_of(here_), "no thread");
  EXPECT_NO_THROW(here_.throw_failure());
  release_open_files();
}

TEST_F(GroupViews, ATimeoutOfAnotherKindPasses) {
  GroupView view(store_, "g", []() -> bool { throw TimeoutError("of another group"); });
  const auto start = steady_clock::now();
  EXPECT_THROW(view.get("never", seconds(30)), TimeoutError);
  EXPECT_LT(steady_clock::now() - start, seconds(5));
}

}  // namespace
}  // namespace smdp
