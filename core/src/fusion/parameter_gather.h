// The batch that sends parameters from the owners of their shards to all ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/batch.h"
#include "fusion/fusion_buffer.h"
#include "smdp/group.h"
#include "smdp/shards.h"

namespace smdp {

class ParameterGather::Impl {
 public:
  // The group must outlive this object. buffers and labels: by number; data: memory laid out as the buffers, null only
  // for a buffer without elements. is_once_per_host: the ranks of a host have the same memory.
  Impl(Group& group, const std::vector<FusionBuffer>& buffers, std::vector<std::string> labels,
       const std::vector<void*>& data, const cost::ExchangeSizes& sizes, bool shards_span_hosts, bool is_once_per_host);

  void ready(std::size_t number);
  void wait(std::size_t number, const std::function<bool()>& interrupted);
  void wait(const std::function<bool()>& interrupted);
  bool is_there(std::size_t number) const;

 private:
  // Position of a buffer among the items.
  std::size_t position(std::size_t number) const { return done_.size() - 1 - number; }
  void check_number(std::size_t number) const;
  // Throws unless the buffer is on its way.
  void check_travels(std::size_t number) const;

  Group& group_;
  const std::vector<std::string> labels_;
  std::vector<std::shared_ptr<Operation>> done_;  // by buffer
  std::vector<bool> is_ready_;                    // by position
  std::size_t sent_ = 0;                          // items that may travel
  std::shared_ptr<Batch> batch_;
  Group::Handle handle_;  // null before the first buffer is sent
};

}  // namespace smdp
