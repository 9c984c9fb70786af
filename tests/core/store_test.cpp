// Memory, prefix and TCP stores: the same promises, across threads and processes, with strangers at the port.
#include "smdp/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store_wire.h"
#include "smdp/error.h"
#include "smdp/internal/group_setup.h"
#include "smdp/tcp_store.h"
#include "transport/handshake.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr char kSecret[] = "correct horse";

std::shared_ptr<TcpStore> serve() {
  return std::make_shared<TcpStore>("127.0.0.1", std::uint16_t{0}, true, kSecret, seconds(10));
}

std::shared_ptr<TcpStore> join(std::uint16_t port, const std::string& secret = kSecret) {
  return std::make_shared<TcpStore>("127.0.0.1", port, false, secret, seconds(10));
}

std::string message_of(const auto& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Two views of one store, as two ranks have them.
struct Views {
  std::shared_ptr<Store> one;
  std::shared_ptr<Store> two;
};

class StoreKinds : public testing::TestWithParam<std::string> {
 protected:
  Views make() const {
    if (GetParam() == "memory") {
      const std::shared_ptr<Store> store = make_memory_store();
      return {store, store};
    }
    const std::shared_ptr<TcpStore> server = serve();
    const std::shared_ptr<TcpStore> client = join(server->port());
    if (GetParam() == "tcp") return {server, client};
    return {make_prefix_store("a", server), make_prefix_store("a", client)};
  }
};

TEST_P(StoreKinds, SetGetCheckReplace) {
  const Views views = make();
  EXPECT_FALSE(views.two->check("key"));
  views.one->set("key", "value");
  EXPECT_TRUE(views.two->check("key"));
  EXPECT_EQ(views.two->get("key", seconds(5)), "value");
  views.two->set("key", "");
  EXPECT_EQ(views.one->get("key", milliseconds(0)), "");
}

TEST_P(StoreKinds, ValuesAreArbitraryBytes) {
  const Views views = make();
  std::string value(1 << 20, '\0');
  std::mt19937 random(1);
  for (char& c : value) c = static_cast<char>(random());
  views.one->set(std::string("k\0y\xff", 4), value);
  EXPECT_EQ(views.two->get(std::string("k\0y\xff", 4), seconds(10)), value);
}

TEST_P(StoreKinds, GetWaitsForTheKey) {
  const Views views = make();
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(100));
    views.one->set("late", "here");
  });
  EXPECT_EQ(views.two->get("late", seconds(20)), "here");
  setter.join();
}

TEST_P(StoreKinds, GetEndsAtItsTimeoutAndTheStoreGoesOn) {
  const Views views = make();
  const auto start = steady_clock::now();
  try {
    views.two->get("absent", milliseconds(150));
    FAIL() << "no timeout";
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos) << error.what();
  }
  EXPECT_GE(steady_clock::now() - start, milliseconds(149));
  EXPECT_LT(steady_clock::now() - start, seconds(8));
  views.one->set("absent", "now there");
  EXPECT_EQ(views.two->get("absent", seconds(5)), "now there");
}

// True from a moment on, as Ctrl-C is.
Interrupted interrupted_after(milliseconds time) {
  return [moment = steady_clock::now() + time] { return steady_clock::now() >= moment; };
}

TEST_P(StoreKinds, AnInterruptionEndsGet) {
  const Views views = make();
  for (const auto& view : {views.one, views.two}) {
    const auto start = steady_clock::now();
    EXPECT_THROW(view->get_unless("absent", seconds(60), interrupted_after(milliseconds(300))), ClosedError);
    EXPECT_LT(steady_clock::now() - start, seconds(3));
  }
  views.one->set("present", "value");
  EXPECT_EQ(views.two->get_unless("present", seconds(60), [] { return false; }), "value");
  const std::string text =
      message_of([&] { views.two->get_unless("absent", milliseconds(700), [] { return false; }); });
  EXPECT_NE(text.find("absent' after 700 ms"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(All, StoreKinds, testing::Values("memory", "tcp", "prefix"),
                         [](const auto& each) { return each.param; });

TEST(PrefixStore, SeparatesKeys) {
  const std::shared_ptr<Store> base = make_memory_store();
  make_prefix_store("a", base)->set("k", "1");
  EXPECT_FALSE(make_prefix_store("b", base)->check("k"));
  EXPECT_EQ(base->get("a/k", milliseconds(0)), "1");
}

TEST(TcpStore, ManyClientsAtOnce) {
  constexpr int kClients = 24;
  const std::shared_ptr<TcpStore> server = serve();
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int rank = 0; rank < kClients; ++rank) {
    clients.emplace_back([&, rank] {
      const std::shared_ptr<TcpStore> store = join(server->port());
      store->set("rank/" + std::to_string(rank), std::to_string(rank * rank));
      for (int other = 0; other < kClients; ++other) {
        if (store->get("rank/" + std::to_string(other), seconds(60)) != std::to_string(other * other)) ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(TcpStore, AcrossProcesses) {
  const std::shared_ptr<TcpStore> server = serve();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = 1;
    try {
      const std::shared_ptr<TcpStore> store = join(server->port());
      store->set("from child", "hello");
      if (store->get("from parent", seconds(20)) == "welcome") status = 0;
    } catch (const std::exception&) {
      status = 2;
    }
    ::_exit(status);
  }
  EXPECT_EQ(server->get("from child", seconds(20)), "hello");
  server->set("from parent", "welcome");
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TcpStore, WrongSecretIsRefusedAndOthersGoOn) {
  const std::shared_ptr<TcpStore> server = serve();
  const std::string text = message_of([&] { join(server->port(), "battery staple"); });
  EXPECT_NE(text.find("secret"), std::string::npos) << text;
  EXPECT_EQ(text.find("staple"), std::string::npos) << text;
  join(server->port())->set("key", "value");
  EXPECT_EQ(server->get("key", seconds(5)), "value");
}

TEST(TcpStore, GarbageAndSilenceDoNotDisturbClients) {
  const std::shared_ptr<TcpStore> server = serve();
  std::atomic<bool> stop{false};
  std::thread strangers([&] {
    std::mt19937 random(7);
    std::vector<FileDescriptor> silent;
    while (!stop.load()) {
      FileDescriptor socket = connect_to("127.0.0.1", server->port(), steady_clock::now() + seconds(10));
      std::string garbage(random() % 300, '\0');
      for (char& c : garbage) c = static_cast<char>(random());
      if (random() % 2 == 0) garbage.insert(0, "smdphs03");
      try {
        send_all(socket.get(), garbage.data(), garbage.size(), steady_clock::now() + seconds(5));
      } catch (const Error&) {
      }
      if (silent.size() < 32) silent.push_back(std::move(socket));
    }
  });
  const std::shared_ptr<TcpStore> client = join(server->port());
  for (int i = 0; i < 200; ++i) {
    client->set("key" + std::to_string(i), std::to_string(i));
    EXPECT_EQ(server->get("key" + std::to_string(i), seconds(10)), std::to_string(i));
  }
  stop.store(true);
  strangers.join();
}

// More of them than there are descriptors for.
TEST(TcpStore, SilentStrangersLeaveDescriptorsToOthers) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const std::shared_ptr<TcpStore> server = serve();
    std::vector<FileDescriptor> silent;
    for (int i = 0; i < 130; ++i) {
      silent.push_back(connect_to("127.0.0.1", server->port(), steady_clock::now() + seconds(10)));
    }
    const std::shared_ptr<TcpStore> client = join(server->port());
    client->set("key", "value");
    EXPECT_EQ(server->get("key", seconds(5)), "value");
    EXPECT_GE(FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get(), 0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Knows the secret, but its frames are wrong: that connection ends, nothing else does.
TEST(TcpStore, OversizedAndRandomFramesEndOnlyTheirConnection) {
  const std::shared_ptr<TcpStore> server = serve();
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const Deadline deadline = steady_clock::now() + seconds(20);
    FileDescriptor socket = connect_to("127.0.0.1", server->port(), deadline);
    handshake(socket, Role::kClient, kSecret, "store", deadline);
    StoreHeader header;
    header.code = static_cast<std::uint8_t>(StoreCommand::kSet);
    if (round == 0) header.key_bytes = kMaxKey + 1;
    if (round == 1) header.value_bytes = kMaxValue + 1;
    if (round == 2) header.value_bytes = 0xffffffff;
    if (round == 3) header.code = 99;
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    if (round > 3) {
      for (char& c : bytes) c = static_cast<char>(random());
      bytes[0] = static_cast<char>(100 + random() % 100);
      bytes[6] = bytes[7] = 1;
    }
    send_all(socket.get(), bytes.data(), bytes.size(), deadline);
    char byte = 0;
    try {
      recv_all(socket.get(), &byte, 1, deadline);
      ADD_FAILURE() << "an answer in round " << round;
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::kTimeout) << round;
    }
  }
  join(server->port())->set("key", "value");
  EXPECT_EQ(server->get("key", seconds(5)), "value");
}

TEST(TcpStore, ClientRefusesTooLongEntriesBeforeSending) {
  const std::shared_ptr<TcpStore> server = serve();
  const std::shared_ptr<TcpStore> client = join(server->port());
  EXPECT_THROW(client->set(std::string(kMaxKey + 1, 'k'), ""), InvalidArgument);
  EXPECT_THROW(client->set("k", std::string(std::size_t{kMaxValue} + 1, 'v')), InvalidArgument);
  client->set(std::string(kMaxKey, 'k'), std::string(kMaxValue, 'v'));
  EXPECT_EQ(client->get(std::string(kMaxKey, 'k'), seconds(20)).size(), std::size_t{kMaxValue});
}

TEST(TcpStore, TakenPortNamesTheVariable) {
  const std::shared_ptr<TcpStore> server = serve();
  try {
    TcpStore("127.0.0.1", server->port(), true, kSecret, seconds(1));
    FAIL() << "two servers at one port";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(server->port())), std::string::npos) << text;
    EXPECT_NE(text.find("SMDP_MASTER_PORT"), std::string::npos) << text;
  }
}

TEST(TcpStore, NoServerNamesAddressAndVariables) {
  std::uint16_t port = 0;
  {
    const FileDescriptor listener = listen_on("127.0.0.1", 0);
    port = local_port(listener);
  }
  try {
    TcpStore("127.0.0.1", port, false, kSecret, milliseconds(200));
    FAIL() << "no error";
  } catch (const TimeoutError& error) {
    const std::string text = error.what();
    for (const std::string& part : {std::string("127.0.0.1"), std::to_string(port), std::string("SMDP_MASTER_ADDR"),
                                    std::string("SMDP_MASTER_PORT"), std::string("rank 0")}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

// It accepts, as the kernel does for a stopped process, and says nothing.
TEST(TcpStore, ASilentServerIsGivenUpAtTheTimeoutOrByCtrlC) {
  const FileDescriptor silent = listen_on("127.0.0.1", 0);
  const std::uint16_t port = local_port(silent);
  auto start = steady_clock::now();
  EXPECT_THROW(TcpStore("127.0.0.1", port, false, kSecret, seconds(1)), TimeoutError);
  EXPECT_LT(steady_clock::now() - start, seconds(4));
  start = steady_clock::now();
  EXPECT_THROW(TcpStore("127.0.0.1", port, false, kSecret, seconds(60), interrupted_after(milliseconds(300))),
               ClosedError);
  EXPECT_LT(steady_clock::now() - start, seconds(3));
}

TEST(TcpStore, CtrlCEndsWhatAStoppedServerOwes) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::vector<FileDescriptor> accepted;
  std::thread server([&] {
    const Deadline deadline = steady_clock::now() + seconds(20);
    accepted.push_back(accept_from({&listener, 1}, deadline));
    handshake(accepted.back(), Role::kServer, kSecret, "store", deadline);
  });
  std::atomic<bool> is_interrupted{false};
  TcpStore store("127.0.0.1", local_port(listener), false, kSecret, seconds(20), [&] { return is_interrupted.load(); });
  server.join();
  const auto start = steady_clock::now();
  EXPECT_THROW(store.get_unless("key", seconds(60), interrupted_after(milliseconds(300))), ClosedError);
  is_interrupted.store(true);
  EXPECT_THROW(store.get("key", seconds(60)), ClosedError);
  EXPECT_THROW(store.set("key", "value"), ClosedError);
  EXPECT_THROW((void)store.check("key"), ClosedError);
  EXPECT_LT(steady_clock::now() - start, seconds(5));
}

// A server that makes room for others among strangers may hit one that was about to prove itself.
TEST(TcpStore, AClientThatIsTurnedAwayComesAgain) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::thread server([&] {
    const Deadline deadline = steady_clock::now() + seconds(20);
    for (int number = 0; number < 2; ++number) accept_from({&listener, 1}, deadline);
    const FileDescriptor third = accept_from({&listener, 1}, deadline);
    handshake(third, Role::kServer, kSecret, "store", deadline);
  });
  EXPECT_NO_THROW(TcpStore("127.0.0.1", local_port(listener), false, kSecret, seconds(20)));
  server.join();
}

TEST(TcpStore, WhoTurnsAllAwayIsNamedAtTheTimeout) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::atomic<bool> stop{false};
  std::thread server([&] {
    while (!stop.load()) accept_from({&listener, 1}, steady_clock::now() + milliseconds(50));
  });
  const auto start = steady_clock::now();
  const std::string text =
      message_of([&] { TcpStore("127.0.0.1", local_port(listener), false, kSecret, milliseconds(500)); });
  EXPECT_NE(text.find("SMDP_MASTER_PORT"), std::string::npos) << text;
  EXPECT_LT(steady_clock::now() - start, seconds(4));
  stop.store(true);
  server.join();
}

TEST(Group, AnInterruptionEndsItsStart) {
  GroupSetup setup;
  setup.interrupted = interrupted_after(milliseconds(300));
  for (const int rank : {0, 1}) {
    const auto start = steady_clock::now();
    EXPECT_THROW(Group(setup, make_memory_store(), rank, 2), ClosedError);
    EXPECT_LT(steady_clock::now() - start, seconds(3));
  }
}

TEST(TcpStore, EndOfTheServerIsAnErrorNotAHang) {
  std::shared_ptr<TcpStore> server = serve();
  const std::shared_ptr<TcpStore> client = join(server->port());
  std::thread ender([&] {
    std::this_thread::sleep_for(milliseconds(150));
    server.reset();
  });
  const auto start = steady_clock::now();
  EXPECT_THROW(client->get("never", seconds(60)), Error);
  EXPECT_LT(steady_clock::now() - start, seconds(20));
  ender.join();
  // Nobody will listen there again.
  const auto again = steady_clock::now();
  EXPECT_THROW(client->check("other"), PeerLostError);
  EXPECT_LT(steady_clock::now() - again, seconds(3));
}

}  // namespace
}  // namespace smdp
