// The proof of the job's secret: right, wrong, replayed, reflected, garbage, silence.
#include "transport/handshake.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <exception>
#include <random>
#include <string>
#include <thread>

#include "smdp/error.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::size_t kHelloBytes = 40;
constexpr std::size_t kProofBytes = 32;

Deadline in(milliseconds time) { return steady_clock::now() + time; }

struct Pair {
  FileDescriptor client;
  FileDescriptor server;
};

Pair socket_pair() {
  int both[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
  return {FileDescriptor(both[0]), FileDescriptor(both[1])};
}

// What the handshake said; empty if it succeeded.
std::string outcome(const FileDescriptor& socket, Role role, const std::string& secret, const std::string& purpose,
                    milliseconds time = seconds(10)) {
  try {
    handshake(socket, role, secret, purpose, in(time));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

struct Outcomes {
  std::string client;
  std::string server;
};

Outcomes meet(const std::string& client_secret, const std::string& server_secret, const std::string& client_purpose,
              const std::string& server_purpose) {
  const Pair pair = socket_pair();
  Outcomes outcomes;
  std::thread client([&] { outcomes.client = outcome(pair.client, Role::kClient, client_secret, client_purpose); });
  outcomes.server = outcome(pair.server, Role::kServer, server_secret, server_purpose);
  client.join();
  return outcomes;
}

TEST(Handshake, SameSecret) {
  for (const std::string& secret : {std::string(), std::string("short"), std::string(500, 's'), std::string(3, '\0')}) {
    const Outcomes outcomes = meet(secret, secret, "store", "store");
    EXPECT_EQ(outcomes.client, "");
    EXPECT_EQ(outcomes.server, "");
  }
}

TEST(Handshake, WrongSecretIsToldOnBothSidesAndNeverPrinted) {
  const Outcomes outcomes = meet("hunter2-client", "hunter2-server", "store", "store");
  for (const std::string& text : {outcomes.client, outcomes.server}) {
    EXPECT_NE(text.find("SMDP_SECRET"), std::string::npos) << text;
    EXPECT_EQ(text.find("hunter2"), std::string::npos) << text;
  }
}

TEST(Handshake, PurposeMustAgree) {
  const Outcomes outcomes = meet("same", "same", "store", "group a");
  EXPECT_NE(outcomes.client, "");
  EXPECT_NE(outcomes.server, "");
}

TEST(Handshake, NothingIsReadBeyondIt) {
  const Pair pair = socket_pair();
  std::thread client([&] {
    handshake(pair.client, Role::kClient, "s", "p", in(seconds(10)));
    send_all(pair.client.get(), "next", 4, in(seconds(10)));
  });
  handshake(pair.server, Role::kServer, "s", "p", in(seconds(10)));
  char next[4];
  recv_all(pair.server.get(), next, 4, in(seconds(10)));
  client.join();
  EXPECT_EQ(std::string(next, 4), "next");
}

TEST(Handshake, ReflectionIsRefused) {
  const Pair pair = socket_pair();
  std::thread mirror([&] {
    char bytes[kHelloBytes + kProofBytes];
    recv_all(pair.client.get(), bytes, kHelloBytes, in(seconds(10)));
    send_all(pair.client.get(), bytes, kHelloBytes, in(seconds(10)));
    recv_all(pair.client.get(), bytes, kProofBytes, in(seconds(10)));
    send_all(pair.client.get(), bytes, kProofBytes, in(seconds(10)));
  });
  EXPECT_NE(outcome(pair.server, Role::kClient, "s", "p"), "");
  mirror.join();
}

// Nothing by which a secret could be guessed.
TEST(Handshake, AServerProvesNothingToStrangers) {
  const Pair pair = socket_pair();
  std::string server;
  std::thread listener([&] { server = outcome(pair.server, Role::kServer, "s", "p"); });
  std::string hello(kHelloBytes, 'n');
  hello.replace(0, 8, "smdphs03");
  send_all(pair.client.get(), hello.data(), hello.size(), in(seconds(10)));
  recv_all(pair.client.get(), hello.data(), hello.size(), in(seconds(10)));
  std::string proof(kProofBytes, 'x');
  EXPECT_THROW(recv_all(pair.client.get(), proof.data(), proof.size(), in(milliseconds(200))), TimeoutError);
  send_all(pair.client.get(), proof.data(), proof.size(), in(seconds(10)));
  recv_all(pair.client.get(), proof.data(), proof.size(), in(seconds(10)));
  EXPECT_EQ(proof, std::string(kProofBytes, '\0'));
  listener.join();
  EXPECT_NE(server.find("SMDP_SECRET"), std::string::npos) << server;
}

TEST(Handshake, ReplayIsRefused) {
  std::string recorded;
  {
    const Pair outer = socket_pair();
    const Pair inner = socket_pair();
    std::thread client([&] { handshake(outer.client, Role::kClient, "s", "p", in(seconds(10))); });
    std::thread server([&] { handshake(inner.server, Role::kServer, "s", "p", in(seconds(10))); });
    // A tap between them.
    for (const std::size_t size : {kHelloBytes, kProofBytes}) {
      std::string bytes(size, '\0');
      recv_all(outer.server.get(), bytes.data(), size, in(seconds(10)));
      send_all(inner.client.get(), bytes.data(), size, in(seconds(10)));
      recorded += bytes;
      recv_all(inner.client.get(), bytes.data(), size, in(seconds(10)));
      send_all(outer.server.get(), bytes.data(), size, in(seconds(10)));
    }
    client.join();
    server.join();
  }
  const Pair pair = socket_pair();
  send_all(pair.client.get(), recorded.data(), recorded.size(), in(seconds(10)));
  EXPECT_NE(outcome(pair.server, Role::kServer, "s", "p"), "");
}

TEST(Handshake, GarbageIsRefused) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    Pair pair = socket_pair();
    std::string garbage(random() % 200, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    send_all(pair.client.get(), garbage.data(), garbage.size(), in(seconds(10)));
    ::shutdown(pair.client.get(), SHUT_WR);
    EXPECT_NE(outcome(pair.server, Role::kServer, "s", "p"), "") << round;
  }
}

TEST(Handshake, SilenceEndsAtTheDeadline) {
  const Pair pair = socket_pair();
  const auto start = steady_clock::now();
  EXPECT_THROW(handshake(pair.server, Role::kServer, "s", "p", in(milliseconds(100))), TimeoutError);
  EXPECT_LT(steady_clock::now() - start, seconds(10));
}

TEST(Handshake, DripDoesNotExtendTheDeadline) {
  const Pair pair = socket_pair();
  std::thread drip([&] {
    for (int i = 0; i < 10; ++i) {
      ::send(pair.client.get(), "s", 1, MSG_NOSIGNAL);
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  const auto start = steady_clock::now();
  EXPECT_NE(outcome(pair.server, Role::kServer, "s", "p", milliseconds(200)), "");
  EXPECT_LT(steady_clock::now() - start, milliseconds(450));
  drip.join();
}

}  // namespace
}  // namespace smdp
