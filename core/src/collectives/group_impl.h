// State that the handles of one group in this process share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "smdp/group.h"
#include "smdp/internal/group_setup.h"

namespace smdp {

class Group::Impl {
 public:
  Impl(std::shared_ptr<Store> store_, int rank, int size, GroupSetup setup_);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();
  const Members& members() const { return engine->members(); }

  // Ends the use of the store's keys for group `name`. Rank 0 waits until all others have done the same.
  void part(const std::string& name) const;
  // The arguments have been checked.
  Handle all_gather(const Fingerprint& print, ConstBuffer in, const std::vector<Buffer>& out, const Call& call);

  const std::shared_ptr<Store> store;
  const GroupSetup setup;
  std::shared_ptr<Engine> engine;
  std::uint64_t id = 0;
  int splits = 0;  // number of calls of split(), which is part of the new group's name

 private:
  void open_trace() const;
};

}  // namespace smdp
