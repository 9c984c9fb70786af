// What a forked child may and may not do with the parent's descriptors and stores.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/file_descriptor.h"
#include "common/fork_guard.h"
#include "ranks.h"
#include "smdp/error.h"
#include "smdp/group.h"
#include "smdp/tcp_store.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// ThreadSanitizer lets no child of a process of several threads start one.
#if defined(__SANITIZE_THREAD__)
constexpr bool kChildMayStartThreads = false;
#else
constexpr bool kChildMayStartThreads = true;
#endif

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

// Both ranks of a group as threads of this process.
std::vector<std::unique_ptr<Group>> two_ranks() {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::unique_ptr<Group>> groups(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&groups, &store, rank] {
      groups[static_cast<std::size_t>(rank)] = std::make_unique<Group>(store, rank, 2, test::quick_options());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return groups;
}

bool is_refused(const auto& work) {
  try {
    work();
  } catch (const ClosedError& error) {
    return std::string(error.what()).find("forked child") != std::string::npos;
  }
  return false;
}

// It waited for the parent's threads.
TEST(Fork, ChildIsToldThatTheOperationIsNotIts) {
  std::vector<std::unique_ptr<Group>> groups = two_ranks();
  const std::vector<std::int64_t> shape{4};
  float data[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 4}};
  Call async;
  async.async = true;
  const auto start = [&](std::size_t rank) {
    return groups[rank]->all_reduce(data[rank], data[rank], shape, DType::kFloat32, ReduceOp::kSum, 1.0, async);
  };
  const Group::Handle first = start(0);
  // A thread that waits at the time of the fork: the child has its place in the queue, but not the thread.
  std::thread waiter([&first] { first->wait(); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(status_of_child([&first] {
              const bool is_told = is_refused([&first] { first->wait(); }) &&
                                   is_refused([&first] { first->wait(milliseconds(1)); }) &&
                                   is_refused([&first] { std::rethrow_exception(first->error()); });
              first->notify(7);
              return is_told && first->wait_for(milliseconds(1)) && first->done() && first->source() == -1 &&
                     next_completion(seconds(5)) == 7;
            }),
            0);
  EXPECT_FALSE(first->done());
  start(1)->wait();
  waiter.join();
  EXPECT_EQ(data[0][3], 8);
  // What had ended before stays as it was.
  EXPECT_EQ(status_of_child([&first] {
              first->wait();
              return first->done() && first->error() == nullptr;
            }),
            0);
}

TEST(Fork, ChildMayDestroyAHandleThatAThreadOfTheParentWaitsFor) {
  std::vector<std::unique_ptr<Group>> groups = two_ranks();
  auto operation = std::make_unique<Operation>();
  std::thread waiter([&operation] { operation->wait(); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(status_of_child([&operation] {
              operation.reset();
              return true;
            }),
            0);
  operation->complete(nullptr);
  waiter.join();
}

// Its ranks never came: they are in other processes, with other memory.
TEST(Fork, ChildCannotMakeAGroupOverAnInheritedStore) {
  const std::shared_ptr<Store> store = make_memory_store();
  EXPECT_EQ(status_of_child([&store] {
              GroupOptions options = test::quick_options();
              options.init_timeout = seconds(2);
              for (const int size : {1, 2}) {
                if (!is_refused([&] { Group(store, size - 1, size, options); })) return false;
              }
              if (kChildMayStartThreads) {
                Group own(make_memory_store(), 0, 1, options);
                own.barrier();
              }
              return true;
            }),
            0);
}

TEST(Fork, ChildIsToldThatTheGroupIsClosed) {
  std::vector<std::unique_ptr<Group>> groups = two_ranks();
  EXPECT_EQ(status_of_child([&groups] {
              groups[0]->abort("from the child");
              return is_refused([&groups] { groups[0]->barrier(); }) &&
                     is_refused([&groups] { std::rethrow_exception(groups[0]->error()); });
            }),
            0);
  EXPECT_EQ(groups[0]->error(), nullptr);
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
