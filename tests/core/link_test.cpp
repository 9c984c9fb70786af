// What a link says of frames that do not fit, however late they come.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smdp/error.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_link.h"

namespace smdp {
namespace {

Fingerprint operation(std::uint64_t sequence) {
  Fingerprint print;
  print.sequence = sequence;
  print.kind = sequence % 2 == 0 ? OpKind::kBroadcast : OpKind::kAllToAll;
  print.dtype = DType::kFloat32;
  return print;
}

Members two_hosts() {
  Members members;
  members.rank = 1;
  members.size = 2;
  members.host_names = {"a", "b"};
  members.hosts = {{0}, {1}};
  members.host_index = 1;
  return members;
}

Link::Handlers ignored() {
  return {[](int, const std::string&) {}, [](std::uint64_t, const std::exception_ptr&) {},
          [](const std::exception_ptr&) {}};
}

// What this rank, which is in operation `current`, says when a frame of operation `late` comes.
std::string error_of_late_frame(std::uint64_t current, const Fingerprint& late) {
  int both[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
  const FileDescriptor peer(both[0]);
  const Members members = two_hosts();
  std::promise<std::string> error;
  Progress progress;
  std::unique_ptr<Link> link;
  progress.run([&] {
    std::vector<FileDescriptor> streams;
    streams.emplace_back(both[1]);
    Link::Handlers handlers = ignored();
    handlers.on_mismatch = [&](std::uint64_t, const std::exception_ptr& raised) {
      try {
        std::rethrow_exception(raised);
      } catch (const MismatchError& mismatch) {
        error.set_value(mismatch.what());
      }
      link->abandon();
    };
    link = std::make_unique<TcpLink>(progress, members, 0, std::move(streams), std::move(handlers));
    for (std::uint64_t sequence = 1; sequence <= current; ++sequence) link->enter(operation(sequence));
  });
  Frame frame;
  frame.total = 16;
  frame.payload = 16;
  frame.fingerprint = late;
  send_all(peer.get(), &frame, sizeof frame, Clock::now() + std::chrono::seconds(10));
  std::future<std::string> text = error.get_future();
  const bool is_there = text.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  progress.run([&] { link.reset(); });
  return is_there ? text.get() : "";
}

// A frame that is half sent when its operation is dropped must reach the peer at its full length, or the peer would
// take what follows for the rest of it. Its memory may be gone by then, so zeros are sent instead. What has not been
// begun is not sent, and what comes of the operation is thrown away.
TEST(Link, EndsWhatItHasBegunOfAnOperationThatIsDropped) {
  int both[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
  const FileDescriptor peer(both[0]);
  const int small = 4096;
  ASSERT_EQ(::setsockopt(both[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  const Members members = two_hosts();
  constexpr std::size_t kBytes = 200'000;
  std::vector<std::byte> sent(kBytes, std::byte{7});
  std::vector<std::byte> received(4, std::byte{1});
  Link::Pending pending = 0;
  Link::Pending later = 0;
  Progress progress;
  std::unique_ptr<Link> link;
  progress.run([&] {
    std::vector<FileDescriptor> streams;
    streams.emplace_back(both[1]);
    link = std::make_unique<TcpLink>(progress, members, 0, std::move(streams), ignored());
    link->enter(operation(1));
    link->receive(0, received.data(), received.size(), pending);
    link->send(0, sent.data(), kBytes, pending, 1);
    link->send(1, sent.data(), kBytes, pending, 1);
    link->drop(1);
    std::fill(sent.begin(), sent.end(), std::byte{9});  // they are the caller's again
    link->enter(operation(2));
    link->receive(0, received.data(), received.size(), later);
    link->send(0, sent.data(), 1, later, 1);
  });
  const Deadline deadline = Clock::now() + std::chrono::seconds(10);
  for (const std::uint64_t sequence : {1U, 2U}) {
    Frame frame;
    recv_all(peer.get(), &frame, sizeof frame, deadline);
    ASSERT_EQ(frame.fingerprint.sequence, sequence);
    std::vector<std::byte> payload(frame.payload);
    recv_all(peer.get(), payload.data(), payload.size(), deadline);
    ASSERT_EQ(payload.size(), sequence == 1 ? kBytes : 1);
    const auto rest = std::find_if(payload.begin(), payload.end(), [](std::byte byte) { return byte != std::byte{7}; });
    EXPECT_TRUE(
        std::all_of(rest, payload.end(), [&](std::byte byte) { return byte == std::byte(sequence == 1 ? 0 : 9); }));
    Frame answer;
    answer.total = answer.payload = received.size();
    answer.fingerprint = operation(sequence);
    send_all(peer.get(), &answer, sizeof answer, deadline);
    const std::vector<std::byte> values(received.size(), sequence == 1 ? std::byte{5} : std::byte{6});
    send_all(peer.get(), values.data(), values.size(), deadline);
  }
  for (bool is_over = false; !is_over && Clock::now() < deadline;) progress.run([&] { is_over = later == 0; });
  EXPECT_EQ(received, std::vector<std::byte>(received.size(), std::byte{6}));
  progress.run([&] { link.reset(); });
}

TEST(Link, NamesTheOperationOfWhichTooMuchCame) {
  for (const std::uint64_t current : {2U, 4U, 5U, 9U}) {
    const std::string text = error_of_late_frame(current, operation(1));
    for (const char* part :
         {"rank 1 of 2", "expects nothing more from rank 0", "in all_to_all #1 ", "sends 16 bytes"}) {
      EXPECT_NE(text.find(part), std::string::npos) << current << ": " << text;
    }
  }
}

TEST(Link, ComparesWithTheOperationOfTheSameNumber) {
  Fingerprint other = operation(3);
  other.kind = OpKind::kBarrier;
  const std::string text = error_of_late_frame(4, other);
  EXPECT_NE(text.find("barrier #3"), std::string::npos) << text;
  EXPECT_NE(text.find("all_to_all #3"), std::string::npos) << text;
}

}  // namespace
}  // namespace smdp
