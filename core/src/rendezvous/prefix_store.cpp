#include <utility>

#include "smdp/store.h"

namespace smdp {
namespace {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> base)
      : prefix_(std::move(prefix) + "/"), base_(std::move(base)) {}

  void set(const std::string& key, const std::string& value) override { base_->set(prefix_ + key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return base_->get(prefix_ + key, timeout);
  }
  std::string get_unless(const std::string& key, std::chrono::milliseconds timeout,
                         const std::function<bool()>& interrupted) override {
    return base_->get_unless(prefix_ + key, timeout, interrupted);
  }
  bool check(const std::string& key) override { return base_->check(prefix_ + key); }
  void check_owner() const override { base_->check_owner(); }

 private:
  const std::string prefix_;
  const std::shared_ptr<Store> base_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> base) {
  return std::make_shared<PrefixStore>(std::move(prefix), std::move(base));
}

}  // namespace smdp
