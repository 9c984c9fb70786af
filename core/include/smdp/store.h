// Key-value store through which the ranks of a group find each other.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "smdp/export.h"

namespace smdp {

// Thread-safe. Keys are written once; values are arbitrary bytes.
class SMDP_API Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Sets `key` to `value` and replaces any earlier value.
  virtual void set(const std::string& key, const std::string& value) = 0;

  // Waits until `key` exists and returns its value. Throws TimeoutError, which names the key, after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;

  // Like get(), but polls `interrupted`; when it returns true, the wait ends with ClosedError (Ctrl-C). May be empty.
  virtual std::string get_unless(const std::string& key, std::chrono::milliseconds timeout,
                                 const std::function<bool()>& interrupted);

  // Returns whether `key` exists now.
  virtual bool check(const std::string& key) = 0;

  // Throws ClosedError if this process must not use the store, as a child forked from its owner must not. Sends
  // nothing.
  virtual void check_owner() const {}
};

// Returns a view of `base` in which every key starts with `prefix` + "/".
SMDP_API std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> base);

// Returns a store inside this process, for ranks that are threads.
SMDP_API std::shared_ptr<Store> make_memory_store();

}  // namespace smdp
