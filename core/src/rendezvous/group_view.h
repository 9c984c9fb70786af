// The keys of one group in the store, and how a rank that cannot take part ends the meeting of all: it leaves its
// reason there, and whoever waits for a key of the group throws that.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "smdp/store.h"

namespace smdp {

class GroupView final : public Store {
 public:
  // interrupted: of every get(); may be empty.
  GroupView(std::shared_ptr<Store> base, const std::string& group, std::function<bool()> interrupted);

  void set(const std::string& key, const std::string& value) override;
  // Throws ShortageError once a rank has failed, or a thread of this process has noted why none can come.
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  // Waits whatever has failed.
  std::string get_unless(const std::string& key, std::chrono::milliseconds timeout,
                         const std::function<bool()>& interrupted) override;
  bool check(const std::string& key) override;

  // Ends the waits of all ranks. The first reason counts. Never throws.
  void fail(const std::string& reason);
  // Throws what get() throws, for waits of other kinds.
  void throw_failure();

 private:
  const std::shared_ptr<Store> store_;
  const std::function<bool()> interrupted_;
};

}  // namespace smdp
