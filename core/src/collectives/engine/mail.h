// Messages from one rank to another (send, receive and offer), and what ends those that wait in vain.
//
// Locks: none. The mailbox belongs to the progress thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/diagnosis.h"
#include "collectives/engine/failures.h"
#include "collectives/engine/group_thread.h"
#include "smdp/group.h"
#include "transport/mail/mailbox.h"
#include "transport/members.h"

namespace smdp {

class Mail {
 public:
  // timeout: for messages that do not set their own.
  Mail(const Members& members, std::chrono::milliseconds timeout, Failures& failures, Diagnosis& diagnosis,
       const GroupThread& thread);

  // Any thread, up to push_offers(). None of them blocks.
  Group::Handle send(Mailbox::Request request, const Call& call);
  Group::Handle receive(Mailbox::Request request, const Call& call);
  Group::Handle offer(Mailbox::Request request);
  void refuse(int source, std::int64_t tag);
  void push_offers();

  // Progress thread, from here on.
  void open(std::vector<std::unique_ptr<ByteStream>> streams) { mailbox_.open(std::move(streams)); }
  bool poll() { return mailbox_.poll(); }
  // Fails the group if a message waits for a rank that has left, or for too long.
  void check(Clock::time_point now);
  // Returns when to call that.
  Clock::time_point deadline();
  // Fails all messages because the group has failed.
  void fail(const std::exception_ptr& error) { mailbox_.fail(error); }

 private:
  Group::Handle post(Mailbox::Request request);
  Group::Handle post_until(Mailbox::Request request, const Call& call);
  void post_to_mailbox(std::function<void(Mailbox&)> work);
  // Returns whether it has failed the group.
  bool check_left();

  const Members& members_;
  const std::chrono::milliseconds timeout_;
  Failures& failures_;
  Diagnosis& diagnosis_;
  const GroupThread& thread_;

  Mailbox mailbox_;
  bool is_inquired_ = false;
  std::optional<Clock::time_point> overdue_since_;
};

}  // namespace smdp
