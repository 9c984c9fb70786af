// Ranks on different hosts find each other while strangers sit at their ports.
#include "rendezvous/remote_mesh.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/bootstrap.h"
#include "rendezvous/roster.h"
#include "smdp/error.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Two ranks, each on a host of its own.
class Pair {
 public:
  Pair() {
    listeners_.push_back(listen_on("127.0.0.1", 0));
    records_[0].rails = {{"127.0.0.1", port()}};
    records_[1].rails = {{"127.0.0.1", 1}};
  }

  std::uint16_t port() const { return local_port(listeners_.front()); }

  Wires connect(int rank, const GroupSetup& options = {}) const {
    Wires wires;
    Members& members = wires.members;
    members.rank = rank;
    members.size = 2;
    members.name = options.name;
    members.host_names = {"a", "b"};
    members.hosts = {{0}, {1}};
    members.host_index = static_cast<std::size_t>(rank);
    wires.data.resize(2);
    wires.mail.resize(2);
    wires.control.resize(rank == 0 ? 2 : 1);
    std::span<const FileDescriptor> own = listeners_;
    if (rank != 0) own = {};
    connect_remote_ranks(records_, "secret", own, options, steady_clock::now() + seconds(30), wires);
    return wires;
  }

 private:
  std::vector<FileDescriptor> listeners_;
  std::vector<Record> records_ = std::vector<Record>(2);
};

void expect_connected(const Pair& pair) {
  std::thread other([&pair] {
    const Wires wires = pair.connect(1);
    EXPECT_GE(wires.mail[0].get(), 0);
  });
  const Wires wires = pair.connect(0);
  EXPECT_GE(wires.mail[1].get(), 0);
  EXPECT_GE(wires.control[1].get(), 0);
  other.join();
}

std::vector<FileDescriptor> silent_strangers(const Pair& pair, int number) {
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < number; ++i) {
    strangers.push_back(connect_to("127.0.0.1", pair.port(), steady_clock::now() + seconds(10)));
  }
  return strangers;
}

TEST(RemoteMesh, NobodyWaitsForASilentStranger) {
  const Pair pair;
  const std::vector<FileDescriptor> strangers = silent_strangers(pair, 3);
  const auto start = steady_clock::now();
  expect_connected(pair);
  EXPECT_LT(steady_clock::now() - start, seconds(4));
}

// More of them than there are descriptors for.
TEST(RemoteMesh, SilentStrangersLeaveDescriptorsToRanks) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const Pair pair;
    const std::vector<FileDescriptor> strangers = silent_strangers(pair, 130);
    const auto start = steady_clock::now();
    expect_connected(pair);
    EXPECT_LT(steady_clock::now() - start, seconds(15));
    EXPECT_GE(FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get(), 0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(RemoteMesh, AnInterruptionEndsTheWaitForARank) {
  const Pair pair;
  GroupSetup options;
  const auto start = steady_clock::now();
  options.interrupted = [start] { return steady_clock::now() - start > milliseconds(300); };
  EXPECT_THROW(pair.connect(0, options), ClosedError);
  EXPECT_LT(steady_clock::now() - start, seconds(3));
}

// All ranks know the address of the world's rank 0. The first rank of a part is elsewhere.
TEST(RemoteMesh, TheFirstRankOfAPartDoesNotListenOnTheMastersAddress) {
  GroupOptions options;
  options.master_addr = "192.0.2.1";  // on no host
  std::vector<Record> others(1);
  others[0].master_seen = options.master_addr;
  EXPECT_EQ(addresses_of_master({}, others, options), std::vector<std::string>{"192.0.2.1"});
  options.world_rank = 2;
  const std::vector<std::string> addresses = addresses_of_master({}, others, options);
  EXPECT_EQ(addresses, own_addresses(options));
  for (const std::string& address : addresses) EXPECT_GE(listen_on(address, 0).get(), 0);
}

}  // namespace
}  // namespace smdp
