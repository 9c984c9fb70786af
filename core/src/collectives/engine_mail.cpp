#include <utility>

#include "collectives/engine.h"
#include "common/failure.h"

namespace smdp {

void Engine::check_mail(Clock::time_point now) {
  if (stop_.load()) {
    std::vector<int> left;
    {
      const std::lock_guard lock(mutex_);
      if (error_) return;
      for (const auto& [rank, reason] : left_) left.push_back(rank);
    }
    std::vector<int> gone;
    // The mailbox adds which message it was.
    const auto fail_for = [&](const std::string& why) {
      fail(std::make_exception_ptr(PeerLostError(members_.prefix() + why, gone)), Tell::kEveryone);
    };
    for (const int rank : left) {
      const bool is_remote = members_.host_of(rank) != members_.host_index;
      if (is_remote && mailbox_->is_open(rank)) continue;  // its messages may still be on their way
      mailbox_->withdraw(rank);
      if (mailbox_->waiting_for(rank) != nullptr) {
        gone = {rank};
        return fail_for(members_.who(rank) + left_reason(rank));
      }
      gone.push_back(rank);
    }
    const bool is_alone = static_cast<int>(gone.size()) + 1 == members_.size;
    if (is_alone && mailbox_->waiting_for(Mailbox::kAnySource) != nullptr) {
      const std::string others = gone.size() > 1 ? " So have all others." : "";
      return fail_for(members_.who(gone.front()) + left_reason(gone.front()) + others);
    }
  }
  const Clock::time_point first = mailbox_->deadline();
  if (now < first) mail_overdue_since_.reset();
  if (first == Clock::time_point::max()) {
    mail_inquired_ = false;
    return;
  }
  if (!mail_inquired_ && now >= first - Control::kInquiry - std::chrono::milliseconds(300)) {
    mail_inquired_ = true;
    inquire(0);
  }
  const Mailbox::Request* request = mailbox_->overdue(now);
  if (request == nullptr) return;
  if (!mail_overdue_since_) mail_overdue_since_ = now;
  if (now - *mail_overdue_since_ < kLastWord) return;
  const std::string whom = request->peer < 0 ? "any rank" : members_.who(request->peer);
  const std::string text =
      members_.prefix() + "a message with tag " + std::to_string(request->tag) +
      (request->is_send ? " to " : " from ") + whom + " timed out after " + seconds(request->timeout) + ": " +
      verdict_for(request->peer, request->is_send ? "has not received it" : "has not sent it") + ".";
  fail(std::make_exception_ptr(TimeoutError(text)), Tell::kEveryone);
}

Group::Handle Engine::mail(Mailbox::Request request) {
  check_usable();
  request.operation = std::make_shared<Operation>();
  const Group::Handle handle = request.operation;
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_), request = std::move(request)] {
    if (alive.expired()) {
      request.operation->complete(std::make_exception_ptr(ClosedError("[smdp] the group was shut down.")));
      return;
    }
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
    }
    if (error) {
      request.operation->complete(error);
    } else if (request.is_send) {
      mailbox_->send(request);
    } else {
      mailbox_->receive(request);
    }
  });
  return handle;
}

Group::Handle Engine::mail_until(Mailbox::Request request, const Call& call) {
  if (call.arrival) throw InvalidArgument(members_.prefix() + "send and recv take no values that come later.");
  request.timeout = call.timeout.value_or(options_.timeout);
  request.deadline = Clock::now() + request.timeout;
  const Group::Handle handle = mail(std::move(request));
  if (!call.async) wait(*handle, call);
  return handle;
}

Group::Handle Engine::send(Mailbox::Request request, const Call& call) {
  request.is_send = true;
  return mail_until(std::move(request), call);
}

Group::Handle Engine::receive(Mailbox::Request request, const Call& call) {
  return mail_until(std::move(request), call);
}

Group::Handle Engine::offer(Mailbox::Request request) {
  request.is_send = request.is_offer = true;
  request.deadline = Clock::time_point::max();
  return mail(std::move(request));
}

void Engine::refuse(int source, std::int64_t tag) {
  post_to_mailbox([source, tag](Mailbox& mailbox) { mailbox.refuse(source, tag); });
}

void Engine::push_offers() {
  post_to_mailbox([](Mailbox& mailbox) { mailbox.push_offers(); });
}

void Engine::post_to_mailbox(std::function<void(Mailbox&)> work) {
  check_usable();
  progress_->post([this, alive = std::weak_ptr<Operation>(alive_token_), work = std::move(work)] {
    if (!alive.expired() && !error()) work(*mailbox_);
  });
}

}  // namespace smdp
