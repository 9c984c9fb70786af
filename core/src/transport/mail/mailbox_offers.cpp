// Offers: refused, pushed by a sender that leaves, or withdrawn when their receiver has left.
#include <algorithm>
#include <utility>

#include "transport/mail/mailbox.h"

namespace smdp {

void Mailbox::refuse(int source, std::int64_t tag) {
  Peer& peer = peers_[static_cast<std::size_t>(source)];
  const auto found = find_arrived(source, tag, true);
  if (found == peer.arrived.end()) {
    Request refusal{};
    refusal.peer = source;
    refusal.tag = tag;
    refusal.deadline = Clock::time_point::max();
    refusal.is_refusal = true;
    receives_.push_back(std::move(refusal));
  } else if (found->payload.empty()) {
    const Header& header = found->header;
    queue(source, {kMagic, Kind::kRefuse, header.dtype, 0, tag, header.id, header.size, 0, 0});
    peer.arrived.erase(found);
  } else if (found->received == found->header.size) {
    peer.arrived.erase(found);
  } else {
    found->is_refused = true;
  }
}

void Mailbox::push_offers() {
  has_pushed_ = true;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    auto& announced = peers_[rank].announced;
    for (auto item = announced.begin(); item != announced.end();) {
      const auto next = std::next(item);
      if (item->second.is_offer) {
        queue_data(static_cast<int>(rank), Kind::kPush, item->first, std::move(item->second));
        announced.erase(item);
      }
      item = next;
    }
  }
}

void Mailbox::withdraw(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const auto end = [&peer](const auto& item) {
    if (!item.second.is_offer) return false;
    std::erase_if(peer.outgoing, [&](const Outgoing& out) { return out.header.id == item.first; });
    item.second.operation->complete(nullptr);
    return true;
  };
  peer.announced.remove_if(end);
  peer.sending.remove_if(end);
}

// Returns the offer that a data frame belongs to, which has not been received yet.
Mailbox::Arrived* Mailbox::find_pushed(Peer& peer, const Header& header) {
  for (Arrived& arrived : peer.arrived) {
    if (arrived.header.kind == Kind::kOffer && arrived.header.id == header.id) return &arrived;
  }
  return nullptr;
}

}  // namespace smdp
