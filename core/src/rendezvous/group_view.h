// The keys of one group in the store. A rank that cannot take part ends the meeting of all ranks by storing its reason
// there; every wait for a key of the group then throws that reason.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "smdp/store.h"

namespace smdp {

class GroupView final : public Store {
 public:
  // interrupted: polled by every get(); may be empty.
  GroupView(std::shared_ptr<Store> base, const std::string& group, std::function<bool()> interrupted);

  void set(const std::string& key, const std::string& value) override;
  // Throws ShortageError once a rank has failed, or a thread of this process has noted why no rank can join.
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  // Waits regardless of failures.
  std::string get_unless(const std::string& key, std::chrono::milliseconds timeout,
                         const std::function<bool()>& interrupted) override;
  bool check(const std::string& key) override;

  // Ends the waits of all ranks. The first reason counts. Never throws.
  void fail(const std::string& reason);
  // Throws what get() would throw, for other kinds of waits.
  void throw_failure();

 private:
  const std::shared_ptr<Store> store_;
  const std::function<bool()> interrupted_;
};

}  // namespace smdp
