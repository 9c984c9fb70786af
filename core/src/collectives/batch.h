// Tensors that one all_reduce sums one after the other, each as soon as this rank has filled it: the pipeline stays
// full from one to the next.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/codec.h"
#include "cost/exchange_cost.h"
#include "reduce/reduce.h"
#include "smdp/operation.h"

namespace smdp {

class Batch {
 public:
  struct Item {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;  // may be `in`
    std::size_t count = 0;     // elements
    Reduction reduction{};
    Codec* codec = nullptr;                     // how float32 sums travel between hosts; null: as they are
    std::shared_ptr<Operation> done = nullptr;  // completed when the item is, if the batch does not fail

    std::size_t bytes() const { return count * size_of(reduction.dtype); }
    void begin() const {
      if (done) done->begin();
    }
    void end() const {
      if (done) done->complete(nullptr);
    }
  };

  // The first `filled` items can be read at once.
  Batch(std::vector<Item> items, std::size_t filled, const cost::ExchangeSizes& sizes = {})
      : items_(std::move(items)), sizes_(sizes), filled_(filled) {}

  const std::vector<Item>& items() const { return items_; }
  // How it is cut between hosts.
  const cost::ExchangeSizes& sizes() const { return sizes_; }
  bool is_filled(std::size_t item) const { return item < filled_.load(std::memory_order_acquire); }
  // Where an item lies, if that was not known before. Before it is filled.
  void place(std::size_t item, std::byte* data) { items_[item].in = items_[item].out = data; }
  // The first `count` items can be read. One thread at a time, never less than before.
  void fill(std::size_t count) { filled_.store(count, std::memory_order_release); }

 private:
  std::vector<Item> items_;  // of those that are filled, nothing changes
  const cost::ExchangeSizes sizes_;
  std::atomic<std::size_t> filled_;
};

}  // namespace smdp
