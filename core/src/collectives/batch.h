// Tensors that one all_reduce sums one after the other, each as soon as this rank has filled it, so that the pipeline
// stays full from one to the next.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/codec.h"
#include "collectives/uneven_shards.h"
#include "cost/exchange_cost.h"
#include "reduce/reduce.h"
#include "smdp/operation.h"

namespace smdp {

// Which part of an all_reduce an item takes. A sharded step stops at the owners, who update what they own, and sends
// the result from the owners to all ranks later.
enum class Part : std::uint8_t { kWhole, kToOwners, kFromOwners };

class Batch {
 public:
  struct Item {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;  // may equal `in`
    std::size_t count = 0;     // elements
    Reduction reduction{};
    Codec* codec = nullptr;                     // encodes float32 sums that travel between hosts; null: not encoded
    std::shared_ptr<Operation> done = nullptr;  // completed when the item is, unless the batch fails
    Part part = Part::kWhole;
    const ShardEnds* ends = nullptr;  // of the shards of an item that is not whole; null: shards are equal
    std::byte* own = nullptr;         // of kToOwners: where what this rank owns goes, side by side; null: to `out`

    std::size_t bytes() const { return count * size_of(reduction.dtype); }
    void begin() const {
      if (done) done->begin();
    }
    void end() const {
      if (done) done->complete(nullptr);
    }
  };

  // The first `filled` items can be read at once. shards_span_hosts: a shard of an item that is not whole has one owner
  // among all ranks; false: one on each host, who all have the same sum. is_once_per_host: the items come from their
  // owners, and the ranks of a host have them in the same memory.
  Batch(std::vector<Item> items, std::size_t filled, const cost::ExchangeSizes& sizes = {},
        bool shards_span_hosts = true, bool is_once_per_host = false)
      : items_(std::move(items)),
        sizes_(sizes),
        shards_span_hosts_(shards_span_hosts),
        is_once_per_host_(is_once_per_host),
        filled_(filled) {}

  const std::vector<Item>& items() const { return items_; }
  // How the batch is cut between hosts.
  const cost::ExchangeSizes& sizes() const { return sizes_; }
  bool shards_span_hosts() const { return shards_span_hosts_; }
  bool is_once_per_host() const { return is_once_per_host_; }
  bool is_filled(std::size_t item) const { return item < filled_.load(std::memory_order_acquire); }
  // Sets where an item is stored if that was not known before. Called before the item is filled.
  void place(std::size_t item, std::byte* data, std::byte* own) {
    items_[item].in = items_[item].out = data;
    items_[item].own = own;
  }
  // Marks the first `count` items as readable. Called by one thread at a time, with counts that never decrease.
  void fill(std::size_t count) { filled_.store(count, std::memory_order_release); }

  std::size_t bytes() const {
    std::size_t all = 0;
    for (const Item& one : items_) all += one.bytes();
    return all;
  }

 private:
  std::vector<Item> items_;  // filled items do not change
  const cost::ExchangeSizes sizes_;
  const bool shards_span_hosts_;
  const bool is_once_per_host_;
  std::atomic<std::size_t> filled_;
};

}  // namespace smdp
