// Objects that other code refers to by number, because an attribute of a graph's op cannot hold a pointer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/mutex.h"

namespace smdp {

// One directory per type. Numbers start at 1 and are never reused.
template <class T>
class Directory {
 public:
  static Directory& instance() {
    static Directory& all = *new Directory;  // never destroyed, because ops may outlive main
    return all;
  }

  std::uint64_t add(const std::shared_ptr<T>& object) {
    const Lock lock(mutex_);
    std::erase_if(objects_, [](const auto& entry) { return entry.second.expired(); });
    objects_[++last_] = object;
    return last_;
  }

  // Returns null if the object is gone or never existed.
  std::shared_ptr<T> find(std::uint64_t number) const {
    const Lock lock(mutex_);
    const auto found = objects_.find(number);
    return found == objects_.end() ? nullptr : found->second.lock();
  }

 private:
  mutable Mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<T>> objects_ SMDP_GUARDED_BY(mutex_);
  std::uint64_t last_ SMDP_GUARDED_BY(mutex_) = 0;
};

}  // namespace smdp
