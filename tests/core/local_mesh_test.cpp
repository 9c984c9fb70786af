// Ranks of one host find each other while strangers sit at their socket.
#include "rendezvous/local_mesh.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/bootstrap.h"
#include "smdp/error.h"
#include "transport/shm/fd_passing.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;

// Three ranks of one host, of which rank 0 listens.
class Host {
 public:
  Host() : name_("smdp-local-mesh-test-" + std::to_string(::getpid())), listener_(listen_local(name_)) {
    records_.resize(kRanks);
    for (Record& record : records_) {
      record.local_name = name_;
      record.user = std::to_string(::geteuid());
    }
  }

  const std::string& name() const { return name_; }
  std::vector<Record>& records() { return records_; }

  bool connect(int rank, const GroupSetup& options = {}) const {
    Wires wires;
    Members& members = wires.members;
    members.rank = rank;
    members.size = kRanks;
    members.name = options.name;
    members.host_names.assign(kRanks, "a");
    members.hosts = {{0, 1, 2}};
    members.local_cores = kRanks;
    wires.control.resize(rank == 0 ? kRanks : 1);
    wires.progress = progress_;
    return connect_local_ranks(*store_, records_, {0, 1, 2}, rank, "secret", listener_, options,
                               steady_clock::now() + seconds(30), wires);
  }

 private:
  const std::string name_;
  const FileDescriptor listener_;
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  const std::shared_ptr<Store> store_ = make_memory_store();
  std::vector<Record> records_;
};

// Whether all ranks share memory, in time and with so much in the log of rank 0.
void expect_connected(const Host& host, const std::string& logged) {
  testing::internal::CaptureStderr();
  const auto start = steady_clock::now();
  std::vector<std::thread> others;
  for (int rank = 1; rank < kRanks; ++rank) others.emplace_back([&, rank] { EXPECT_TRUE(host.connect(rank)); });
  EXPECT_TRUE(host.connect(0));
  for (std::thread& other : others) other.join();
  EXPECT_LT(steady_clock::now() - start, seconds(4));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(logged), std::string::npos) << log;
  EXPECT_EQ(log.find(logged), log.rfind(logged)) << log;
}

std::vector<FileDescriptor> strangers(const Host& host, const std::string& words) {
  std::vector<FileDescriptor> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(connect_local(host.name()));
    EXPECT_EQ(::send(all.back().get(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  }
  return all;
}

std::string refusal() {
  return "refused a connection from process " + std::to_string(::getpid()) + " of user " + std::to_string(::geteuid());
}

TEST(LocalMesh, NobodyWaitsForASilentStranger) {
  const Host host;
  const std::vector<FileDescriptor> silent = strangers(host, "");
  expect_connected(host, refusal() + ": all ranks have joined");
}

TEST(LocalMesh, GarbageIsRefusedAndLoggedOnce) {
  const Host host;
  const std::vector<FileDescriptor> loud = strangers(host, std::string(200, 'x'));
  expect_connected(host, refusal() + ": [smdp] the other side of a connection does not speak smdp's protocol");
}

// The kernel knows as whom a process called: ranks are told apart from all that run as somebody else.
TEST(LocalMesh, AnotherUserIsRefused) {
  Host host;
  for (Record& record : host.records()) record.user += "1";
  testing::internal::CaptureStderr();
  std::thread other([&host] { EXPECT_FALSE(host.connect(1)); });
  std::thread another([&host] { EXPECT_FALSE(host.connect(2)); });
  EXPECT_FALSE(host.connect(0));  // and TCP does it
  other.join();
  another.join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(refusal() + ": [smdp] no rank of this host runs as that user"), std::string::npos) << log;
}

// In containers with users of their own a number means little.
TEST(LocalMesh, OtherNamespacesOfUsersAreNoReason) {
  Host host;
  for (Record& record : host.records()) record.user += "1";
  host.records()[1].user_space = "another";
  const std::vector<FileDescriptor> silent = strangers(host, "");
  expect_connected(host, refusal() + ": all ranks have joined");
}

TEST(LocalMesh, AnInterruptionEndsTheWaitForARank) {
  const Host host;
  GroupSetup options;
  const auto start = steady_clock::now();
  options.interrupted = [start] { return steady_clock::now() - start > milliseconds(300); };
  EXPECT_THROW(host.connect(0, options), ClosedError);
  EXPECT_LT(steady_clock::now() - start, seconds(3));
}

}  // namespace
}  // namespace smdp
