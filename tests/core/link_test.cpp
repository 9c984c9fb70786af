// What a link says of frames that do not fit, however late they come.
#include "transport/tcp/link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <exception>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "smdp/error.h"
#include "transport/tcp/socket.h"

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
    link = std::make_unique<Link>(
        progress, members, 0, std::move(streams), [](int, const std::string&) {},
        [&](const std::exception_ptr& raised) {
          try {
            std::rethrow_exception(raised);
          } catch (const MismatchError& mismatch) {
            error.set_value(mismatch.what());
          }
          link->abandon();
        });
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
