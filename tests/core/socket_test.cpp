// Listening, connecting, blocking transfers with deadlines, interface names.
#include "transport/tcp/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <utility>

#include "smdp/error.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

Deadline in(milliseconds time) { return steady_clock::now() + time; }

struct Pair {
  FileDescriptor client;
  FileDescriptor server;
};

Pair connected(const std::string& host) {
  const FileDescriptor listener = listen_on(host, 0);
  Pair pair;
  pair.client = connect_to(host, local_port(listener), in(seconds(5)));
  pair.server = accept_from({&listener, 1}, in(seconds(5)));
  return pair;
}

bool has_ipv6_loopback() {
  try {
    listen_on("::1", 0);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(Socket, BothEndsKnowEachOther) {
  const Pair pair = connected("127.0.0.1");
  EXPECT_EQ(local_address(pair.client), "127.0.0.1");
  EXPECT_EQ(peer_address(pair.server), "127.0.0.1");
  EXPECT_TRUE(is_loopback(peer_address(pair.server)));
}

TEST(Socket, Ipv6Loopback) {
  if (!has_ipv6_loopback()) GTEST_SKIP() << "this machine has no IPv6 loopback address";
  const Pair pair = connected("::1");
  EXPECT_EQ(peer_address(pair.server), "::1");
  EXPECT_TRUE(is_loopback("::1"));
  send_all(pair.client.get(), "six", 3, in(seconds(5)));
  char text[3];
  recv_all(pair.server.get(), text, 3, in(seconds(5)));
  EXPECT_EQ(std::string(text, 3), "six");
}

TEST(Socket, AllAreClosedOnExec) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  const Pair pair = connected("127.0.0.1");
  for (const FileDescriptor* socket : {&listener, &pair.client, &pair.server}) {
    EXPECT_NE(::fcntl(socket->get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(Socket, TransfersMoreThanTheBuffersHold) {
  const Pair pair = connected("127.0.0.1");
  std::string data(8 << 20, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 >> 3);
  std::thread sender([&] { send_all(pair.client.get(), data.data(), data.size(), in(seconds(30))); });
  std::string received(data.size(), '\0');
  recv_all(pair.server.get(), received.data(), received.size(), in(seconds(30)));
  sender.join();
  EXPECT_EQ(data, received);
}

TEST(Socket, ReceiveEndsAtTheDeadline) {
  const Pair pair = connected("127.0.0.1");
  send_all(pair.client.get(), "ab", 2, in(seconds(5)));
  char text[4];
  const auto start = steady_clock::now();
  EXPECT_THROW(recv_all(pair.server.get(), text, 4, in(milliseconds(100))), TimeoutError);
  EXPECT_GE(steady_clock::now() - start, milliseconds(99));
  EXPECT_LT(steady_clock::now() - start, seconds(10));
}

TEST(Socket, SendEndsAtTheDeadline) {
  const Pair pair = connected("127.0.0.1");
  const std::string data(64 << 20, 'x');
  EXPECT_THROW(send_all(pair.client.get(), data.data(), data.size(), in(milliseconds(100))), TimeoutError);
}

TEST(Socket, ClosedPeerIsAnErrorNotATimeoutNorASignal) {
  Pair pair = connected("127.0.0.1");
  pair.client.reset();
  char byte = 0;
  try {
    recv_all(pair.server.get(), &byte, 1, in(seconds(5)));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(error.what()).find("closed"), std::string::npos) << error.what();
  }
  const std::string data(1 << 20, 'x');
  EXPECT_THROW(send_all(pair.server.get(), data.data(), data.size(), in(seconds(5))), Error);
}

TEST(Socket, ConnectsToAListenerThatComesLater) {
  std::uint16_t port = 0;
  {
    const FileDescriptor listener = listen_on("127.0.0.1", 0);
    port = local_port(listener);
  }
  std::thread later;
  FileDescriptor listener;
  later = std::thread([&] {
    std::this_thread::sleep_for(milliseconds(150));
    listener = listen_on("127.0.0.1", port);
  });
  EXPECT_GE(connect_to("127.0.0.1", port, in(seconds(10))).get(), 0);
  later.join();
}

TEST(Socket, FailedConnectNamesWhere) {
  std::uint16_t port = 0;
  {
    const FileDescriptor listener = listen_on("127.0.0.1", 0);
    port = local_port(listener);
  }
  try {
    connect_to("127.0.0.1", port, in(milliseconds(100)));
    FAIL() << "connected to a closed port";
  } catch (const TimeoutError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("127.0.0.1"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(port)), std::string::npos) << text;
  }
}

TEST(Socket, TakenPortAndForeignAddressAreErrors) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  EXPECT_THROW(listen_on("127.0.0.1", local_port(listener)), Error);
  EXPECT_THROW(listen_on("192.0.2.1", 0), Error);
  EXPECT_THROW(listen_on("not-a-number", 0), Error);
}

TEST(Socket, AcceptGivesUpAtTheDeadline) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  EXPECT_LT(accept_from({&listener, 1}, in(milliseconds(20))).get(), 0);
}

TEST(Interfaces, PrefixExactAndExclusion) {
  using Addresses = std::vector<std::string>;
  EXPECT_EQ(addresses_of_interfaces("lo"), Addresses{"127.0.0.1"});
  EXPECT_EQ(addresses_of_interfaces("none,l"), Addresses{"127.0.0.1"});
  EXPECT_EQ(addresses_of_interfaces("lo,lo"), Addresses{"127.0.0.1"});
  EXPECT_EQ(addresses_of_interfaces("=lo"), Addresses{"127.0.0.1"});
  EXPECT_EQ(addresses_of_interfaces("^none"), Addresses{"127.0.0.1"});
  EXPECT_THROW(addresses_of_interfaces("=l"), ConfigError);
}

TEST(Interfaces, ErrorListsWhatThereIs) {
  try {
    addresses_of_interfaces("absent0");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* part : {"absent0", "SMDP_SOCKET_IFNAME", "lo"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST(FileDescriptor, MovesAndReleases) {
  FileDescriptor first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = first.get();
  FileDescriptor second(std::move(first));
  EXPECT_EQ(second.get(), number);
  FileDescriptor third;
  third = std::move(second);
  const int released = third.release();
  EXPECT_EQ(released, number);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
  FileDescriptor(released).reset();
  EXPECT_LT(::fcntl(number, F_GETFD), 0);
}

}  // namespace
}  // namespace smdp
