// Damaged and hostile bytes at every place that parses what comes over a socket, from a peer that knows the secret.
// Nothing may crash, write outside a buffer (run it under AddressSanitizer) or hang. SMDP_FUZZ_ROUNDS sets how many.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <string>

#include "smdp/error.h"
#include "smdp/tcp_store.h"
#include "transport/control.h"
#include "transport/handshake.h"
#include "transport/mail/mailbox.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/socket_stream.h"
#include "transport/tcp/tcp_link.h"

namespace smdp {
namespace {

int rounds() {
  const char* text = std::getenv("SMDP_FUZZ_ROUNDS");
  return text == nullptr ? 400 : std::atoi(text);
}

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int both[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both), 0);
  return {FileDescriptor(both[0]), FileDescriptor(both[1])};
}

using Random = std::mt19937_64;

// Numbers near the limits of buffers and types.
std::uint64_t nasty(Random& random, std::uint64_t honest) {
  const std::uint64_t choices[] = {honest, honest, honest + 1, honest - 1, 0, 1, ~std::uint64_t{0}, random() % 4096};
  return choices[random() % std::size(choices)];
}

void flip(Random& random, std::string& bytes) {
  for (std::uint64_t i = random() % 3; i != 0 && !bytes.empty(); --i) {
    bytes[random() % bytes.size()] = static_cast<char>(random());
  }
}

// Writes what the other side takes; it may have closed.
void pour(const FileDescriptor& socket, const std::string& bytes) {
  std::size_t done = 0;
  for (int patience = 0; done < bytes.size() && patience < 3;) {
    const ssize_t sent = ::send(socket.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno != EAGAIN) {
      return;
    } else {
      ++patience;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

Members two_ranks() {
  Members members;
  members.size = 2;
  members.host_names = {"here", "there"};
  members.hosts = {{0}, {1}};
  return members;
}

TEST(Fuzz, FramesOfCollectives) {
  Progress progress;
  const Members members = two_ranks();
  for (int round = 0; round < rounds(); ++round) {
    Random random(static_cast<std::uint64_t>(round));
    auto [ours_a, theirs_a] = socket_pair();
    auto [ours_b, theirs_b] = socket_pair();
    // Exactly as long as announced, so that a sanitizer sees every byte too many.
    std::vector<std::vector<std::byte>> buffers{std::vector<std::byte>(1000), std::vector<std::byte>(1),
                                                std::vector<std::byte>(0), std::vector<std::byte>(300'000)};
    Fingerprint fingerprint;
    fingerprint.kind = OpKind::kAllReduce;
    fingerprint.sequence = 7;
    std::vector<Link::Pending> pending(buffers.size());
    std::unique_ptr<Link> link;
    progress.run([&] {
      std::vector<FileDescriptor> streams;
      streams.push_back(std::move(ours_a));
      streams.push_back(std::move(ours_b));
      link = std::make_unique<TcpLink>(
          progress, members, 1, std::move(streams),
          Link::Handlers{[](int, const std::string&) {}, [](std::uint64_t, const std::exception_ptr&) {},
                         [](const std::exception_ptr&) {}});
      link->enter(fingerprint);
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        link->receive(i, buffers[i].data(), buffers[i].size(), pending[i]);
      }
    });
    for (int i = 0; i < 8; ++i) {
      const std::size_t slot = random() % buffers.size();
      Frame frame;
      frame.fingerprint = fingerprint;
      frame.slot = nasty(random, slot);
      frame.total = nasty(random, buffers[slot].size());
      frame.payload = std::min<std::uint64_t>(nasty(random, buffers[slot].size()), 400'000);
      frame.offset = nasty(random, 0);
      std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
      if (random() % 4 == 0) flip(random, bytes);
      bytes.resize(bytes.size() + std::min<std::size_t>(frame.payload, 400'000));
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      pour(random() % 2 == 0 ? theirs_a : theirs_b, bytes);
      if (random() % 32 != 0) continue;
      progress.run([&] {
        link->drop(fingerprint.sequence);
        for (std::vector<std::byte>& buffer : buffers) buffer = {};  // nothing may touch them
      });
    }
    theirs_a.reset();
    theirs_b.reset();
    progress.run([] {});
    progress.run([&] { link.reset(); });
  }
}

// The layout of a message's header, see Mailbox::Header.
struct MailHeader {
  std::uint32_t magic = 0x6c69616d;
  std::uint8_t kind = 0;
  DType dtype = DType::kUint8;
  std::uint16_t reserved = 0;
  std::int64_t tag = 0;
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  std::uint64_t payload = 0;
  std::uint64_t offset = 0;
};

TEST(Fuzz, Messages) {
  Progress progress;
  const Members members = two_ranks();
  for (int round = 0; round < rounds(); ++round) {
    Random random(static_cast<std::uint64_t>(round));
    auto [ours, theirs] = socket_pair();
    std::vector<std::byte> small(100);
    std::vector<std::byte> large(100'000);
    std::vector<std::shared_ptr<Operation>> operations;
    std::unique_ptr<Mailbox> mailbox;
    const auto request = [&](std::vector<std::byte>& buffer, std::int64_t tag) {
      operations.push_back(std::make_shared<Operation>());
      return Mailbox::Request{operations.back(), buffer.data(),         buffer.size(), DType::kUint8, 1, tag,
                              Clock::now(),      std::chrono::hours(1), tag == 0};
    };
    progress.run([&] {
      mailbox = std::make_unique<Mailbox>(members, [](int, const std::string&) {}, [](std::exception_ptr) {});
      std::vector<std::unique_ptr<ByteStream>> streams(2);
      streams[1] = std::make_unique<SocketStream>(progress, std::move(ours), [] {});
      mailbox->open(std::move(streams));
      mailbox->receive(request(small, 1));
      mailbox->receive(request(large, 2));
      mailbox->send(request(large, 3));
      mailbox->send(request(small, 0));
      mailbox->refuse(1, 0);
    });
    for (int i = 0; i < 8; ++i) {
      MailHeader header;
      header.kind = static_cast<std::uint8_t>(random() % 8);
      if (random() % 4 == 0) header.dtype = static_cast<DType>(random() % 32);
      header.tag = static_cast<std::int64_t>(random() % 4);
      header.id = random() % 3;
      header.size = nasty(random, random() % 2 == 0 ? small.size() : large.size());
      const bool is_data = header.kind == 3 || header.kind == 6;
      header.payload = nasty(random, header.kind == 0 ? header.size : is_data ? 50'000 : 0);
      header.offset = is_data ? nasty(random, 50'000) : 0;
      std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
      if (random() % 4 == 0) flip(random, bytes);
      bytes.resize(bytes.size() + std::min<std::size_t>(header.payload, 120'000));
      pour(theirs, bytes);
      progress.run([&] {
        mailbox->poll();
        // Also in the middle of a message, and with the wrong size.
        const auto tag = static_cast<std::int64_t>(random() % 4);
        if (random() % 4 == 0) mailbox->receive(request(random() % 2 == 0 ? small : large, tag));
        if (random() % 4 == 0) mailbox->refuse(1, tag);
        if (random() % 8 == 0) mailbox->push_offers();
        mailbox->poll();
      });
    }
    theirs.reset();
    progress.run([&] {
      mailbox->poll();
      mailbox->fail(std::make_exception_ptr(Error("over")));
      mailbox.reset();
    });
    for (const auto& operation : operations) EXPECT_TRUE(operation->done());
  }
}

TEST(Fuzz, ControlMessages) {
  Progress progress;
  const Members members = two_ranks();
  for (int round = 0; round < rounds(); ++round) {
    Random random(static_cast<std::uint64_t>(round));
    auto [ours, theirs] = socket_pair();
    std::vector<FileDescriptor> connections(2);
    connections[1] = std::move(ours);
    std::unique_ptr<Control> control =
        std::make_unique<Control>(progress, members, std::move(connections),
                                  Control::Callbacks{[](const Failure& failure) { (void)failure.exception(); },
                                                     [](std::uint64_t, const std::string&) {},
                                                     [](int, const std::string&) {}, [] { return Control::Status{}; }});
    progress.run([&] { control->open(); });
    for (int i = 0; i < 8; ++i) {
      std::string body;
      body += "ALPQIVR?"[random() % 8];
      const std::int32_t origin = random() % 4 == 0 ? static_cast<std::int32_t>(random()) : 1;
      body.append(reinterpret_cast<const char*>(&origin), sizeof origin);
      for (std::uint64_t left = random() % 100; left != 0; --left) body += static_cast<char>(random());
      if (random() % 4 == 0) body.resize(random() % body.size());
      const auto length = static_cast<std::uint32_t>(nasty(random, body.size()));
      pour(theirs, std::string(reinterpret_cast<const char*>(&length), sizeof length) + body);
    }
    theirs.reset();
    progress.run([] {});
    progress.run([&] { control.reset(); });
  }
}

TEST(Fuzz, StoreRequests) {
  const TcpStore store("127.0.0.1", 0, true, "secret", std::chrono::seconds(5));
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int round = 0; round < std::min(rounds(), 1000); ++round) {
    Random random(static_cast<std::uint64_t>(round));
    const FileDescriptor socket = connect_to("127.0.0.1", store.port(), deadline);
    handshake(socket, Role::kClient, "secret", "store", deadline);
    std::string bytes;
    for (int i = 0; i < 4; ++i) {
      const auto key = static_cast<std::uint32_t>(nasty(random, 5));
      const auto value = static_cast<std::uint32_t>(nasty(random, 9));
      const std::uint32_t header[4] = {static_cast<std::uint32_t>(random() % 5), key, value, 1};
      bytes.append(reinterpret_cast<const char*>(header), sizeof header);
      bytes.resize(bytes.size() + std::min<std::uint32_t>(key, 5000) + std::min<std::uint32_t>(value, 5000), 'x');
      flip(random, bytes);
    }
    pour(socket, bytes);
  }
  // It still serves.
  TcpStore client("127.0.0.1", store.port(), false, "secret", std::chrono::seconds(5));
  client.set("key", "value");
  EXPECT_EQ(client.get("key", std::chrono::seconds(5)), "value");
}

}  // namespace
}  // namespace smdp
