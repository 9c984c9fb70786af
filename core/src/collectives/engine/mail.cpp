#include "collectives/engine/mail.h"

#include <string>
#include <utility>

#include "common/failure.h"
#include "smdp/error.h"

namespace smdp {

Mail::Mail(const Members& members, std::chrono::milliseconds timeout, Failures& failures, Diagnosis& diagnosis,
           const GroupThread& thread)
    : members_(members),
      timeout_(timeout),
      failures_(failures),
      diagnosis_(diagnosis),
      thread_(thread),
      mailbox_(
          members, [&failures](int rank, const std::string& reason) { failures.on_broken(rank, reason); },
          [&failures](std::exception_ptr error) { failures.fail(std::move(error), Failures::Tell::kEveryone); }) {}

bool Mail::check_left() {
  std::vector<int> gone;
  // The mailbox adds which message it was.
  const auto fail_for = [&](const std::string& why) {
    failures_.fail(std::make_exception_ptr(PeerLostError(members_.prefix() + why, gone)), Failures::Tell::kEveryone);
    return true;
  };
  for (const int rank : failures_.left()) {
    const bool is_remote = members_.host_of(rank) != members_.host_index;
    if (is_remote && mailbox_.is_open(rank)) continue;  // its messages may still be in transit
    mailbox_.withdraw(rank);
    if (mailbox_.waiting_for(rank) != nullptr) {
      gone = {rank};
      return fail_for(members_.who(rank) + failures_.left_reason(rank));
    }
    gone.push_back(rank);
  }
  const bool is_alone = static_cast<int>(gone.size()) + 1 == members_.size;
  if (!is_alone || mailbox_.waiting_for(Mailbox::kAnySource) == nullptr) return false;
  const std::string others = gone.size() > 1 ? " All other ranks have left as well." : "";
  return fail_for(members_.who(gone.front()) + failures_.left_reason(gone.front()) + others);
}

void Mail::check(Clock::time_point now) {
  if (failures_.is_news() && (failures_.error() || check_left())) return;
  const Clock::time_point first = mailbox_.deadline();
  if (now < first) overdue_since_.reset();
  if (first == Clock::time_point::max()) {
    is_inquired_ = false;
    return;
  }
  if (!is_inquired_ && now >= first - kAnswer) {
    is_inquired_ = true;
    diagnosis_.inquire(0);
  }
  const Mailbox::Request* request = mailbox_.overdue(now);
  if (request == nullptr) return;
  if (!overdue_since_) overdue_since_ = now;
  if (now - *overdue_since_ < kLastWord) return;
  const std::string whom = request->peer < 0 ? "any rank" : members_.who(request->peer);
  const std::string text =
      members_.prefix() + "a message with tag " + std::to_string(request->tag) +
      (request->is_send ? " to " : " from ") + whom + " timed out after " + seconds(request->timeout) + ": " +
      diagnosis_.verdict_for(request->peer, request->is_send ? "has not received it" : "has not sent it") + ".";
  failures_.fail(std::make_exception_ptr(TimeoutError(text)), Failures::Tell::kEveryone);
}

Clock::time_point Mail::deadline() {
  const Clock::time_point first = mailbox_.deadline();
  return first == Clock::time_point::max() || is_inquired_ ? first : first - kAnswer;
}

Group::Handle Mail::post(Mailbox::Request request) {
  failures_.check_usable();
  request.operation = std::make_shared<Operation>();
  const Group::Handle handle = request.operation;
  auto begin = [this, request = std::move(request)] {
    if (const std::exception_ptr error = failures_.error()) {
      request.operation->complete(error);
    } else if (request.is_send) {
      mailbox_.send(request);
    } else {
      mailbox_.receive(request);
    }
  };
  const auto refuse = [handle] {
    handle->complete(std::make_exception_ptr(ClosedError("[smdp] the group was shut down.")));
  };
  thread_.post(std::move(begin), refuse);
  return handle;
}

Group::Handle Mail::post_until(Mailbox::Request request, const Call& call) {
  if (call.arrival)
    throw InvalidArgument(members_.prefix() +
                          "send and recv do not support an arrival. The data must be complete when they are called.");
  request.timeout = call.timeout.value_or(timeout_);
  request.deadline = Clock::now() + request.timeout;
  return post(std::move(request));
}

Group::Handle Mail::send(Mailbox::Request request, const Call& call) {
  request.is_send = true;
  return post_until(std::move(request), call);
}

Group::Handle Mail::receive(Mailbox::Request request, const Call& call) { return post_until(std::move(request), call); }

Group::Handle Mail::offer(Mailbox::Request request) {
  request.is_send = request.is_offer = true;
  request.deadline = Clock::time_point::max();
  return post(std::move(request));
}

void Mail::refuse(int source, std::int64_t tag) {
  post_to_mailbox([source, tag](Mailbox& mailbox) { mailbox.refuse(source, tag); });
}

void Mail::push_offers() {
  post_to_mailbox([](Mailbox& mailbox) { mailbox.push_offers(); });
}

void Mail::post_to_mailbox(std::function<void(Mailbox&)> work) {
  failures_.check_usable();
  thread_.post([this, work = std::move(work)] {
    if (!failures_.error()) work(mailbox_);
  });
}

}  // namespace smdp
