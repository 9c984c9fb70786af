// What a forked child may and may not do with the parent's descriptors and stores.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "common/file_descriptor.h"
#include "common/fork_guard.h"
#include "smdp/error.h"
#include "smdp/tcp_store.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Exit status of a child that runs `work`; a child that hangs is killed by its alarm.
int status_of_child(const auto& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(work() ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

TEST(Fork, ChildHasNotTheDescriptors) {
  const FileDescriptor owned(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = owned.get();
  const std::uint64_t generation = ForkGuard::generation();
  EXPECT_EQ(status_of_child([&] {
              return ::fcntl(number, F_GETFD) < 0 && owned.get() == -1 && ForkGuard::in_forked_child(generation);
            }),
            0);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
  EXPECT_FALSE(ForkGuard::in_forked_child(generation));
}

// A stale owner closed whatever had its number by then.
TEST(Fork, ChildDoesNotCloseAnothersDescriptor) {
  FileDescriptor owned(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(status_of_child([&] {
              const int another = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
              owned.reset();
              return ::fcntl(another, F_GETFD) >= 0;
            }),
            0);
}

// The destructor joined threads that a child does not have.
TEST(Fork, ChildMayDestroyStoresButNotUseThem) {
  auto server = std::make_unique<TcpStore>("127.0.0.1", std::uint16_t{0}, true, "s", seconds(10));
  auto client = std::make_unique<TcpStore>("127.0.0.1", server->port(), false, "s", seconds(10));
  EXPECT_EQ(status_of_child([&] {
              int refused = 0;
              for (TcpStore* store : {server.get(), client.get()}) {
                try {
                  store->set("key", "from child");
                } catch (const ClosedError&) {
                  ++refused;
                }
              }
              client.reset();
              server.reset();
              return refused == 2;
            }),
            0);
  client->set("key", "value");
  EXPECT_EQ(server->get("key", seconds(5)), "value");
}

// The lock of the one connection was held by the thread that waited.
TEST(TcpStore, AWaitingThreadDoesNotHoldUpTheOneThatSets) {
  TcpStore server("127.0.0.1", 0, true, "s", seconds(10));
  TcpStore client("127.0.0.1", server.port(), false, "s", seconds(10));
  std::thread waiter([&] { EXPECT_EQ(client.get("key", seconds(5)), "value"); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(client.check("key"));
  client.set("key", "value");
  waiter.join();
}

TEST(TcpStore, ServesIpv6AndIpv4) {
  try {
    listen_on("::1", 0);
  } catch (const Error&) {
    GTEST_SKIP() << "this machine has no IPv6 loopback address";
  }
  TcpStore server("::1", 0, true, "s", seconds(10));
  TcpStore six("::1", server.port(), false, "s", seconds(5));
  TcpStore four("127.0.0.1", server.port(), false, "s", seconds(5));
  six.set("key", "value");
  EXPECT_EQ(four.get("key", seconds(5)), "value");
}

TEST(Socket, Ipv4PeerOfAnIpv6ListenerKeepsItsName) {
  const FileDescriptor listener = listen_on("", 0);
  const auto deadline = std::chrono::steady_clock::now() + seconds(5);
  const FileDescriptor client = connect_to("127.0.0.1", local_port(listener), deadline);
  const FileDescriptor accepted = accept_from({&listener, 1}, deadline);
  EXPECT_EQ(peer_address(accepted), "127.0.0.1");
  EXPECT_EQ(local_address(accepted), "127.0.0.1");
}

}  // namespace
}  // namespace smdp
