// Ranks that call while this process fails.
#include "rendezvous/acceptor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "common/shortage.h"
#include "transport/tcp/socket.h"

namespace smdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

bool has_hung_up(int socket, milliseconds time) {
  pollfd one{socket, POLLRDHUP, 0};
  return ::poll(&one, 1, static_cast<int>(time.count())) == 1;
}

// A rank that has proved the secret may take its connection for made. It must stay open for the reason of the failure.
TEST(Acceptor, AFailureLeavesAuthenticatedCallersConnected) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::promise<void> proved_by_second;
  std::promise<void> failed;
  FileDescriptor placed;
  Acceptor::Setup setup;
  setup.listeners = {&listener, 1};
  setup.name = peer_address;
  setup.greet = [&](FileDescriptor& socket, Deadline deadline, const std::function<void()>& proved) {
    char who = 0;
    recv_all(socket.get(), &who, sizeof who, deadline);
    if (who == '1') {
      proved_by_second.get_future().wait();
      failed.set_value();
      throw shortage("recv", "a connection", ENOMEM);
    }
    proved();
    proved_by_second.set_value();
    failed.get_future().wait();
    EXPECT_FALSE(has_hung_up(socket.get(), milliseconds(100)));
    return std::function<void()>([&] { placed = std::move(socket); });
  };
  Acceptor acceptor(std::move(setup), 2, steady_clock::now() + seconds(30));
  std::vector<FileDescriptor> callers;
  for (const char who : {'1', '2'}) {
    callers.push_back(connect_to("127.0.0.1", local_port(listener), steady_clock::now() + seconds(10)));
    send_all(callers.back().get(), &who, sizeof who, steady_clock::now() + seconds(10));
  }
  EXPECT_TRUE(acceptor.is_over_within(seconds(10)));
  EXPECT_THROW(acceptor.have_all_come(), ShortageError);
  EXPECT_GE(placed.get(), 0);
  EXPECT_FALSE(has_hung_up(callers.back().get(), milliseconds(0)));
}

}  // namespace
}  // namespace smdp
