// Ranks as threads over an in-memory store: run(layout, body) calls body(group) once per rank and rethrows the first
// error. layout: ranks per host; hosts are told apart by host_id, so one process holds shared memory and TCP paths.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "smdp/group.h"

namespace smdp::test {

using Layout = std::vector<int>;

inline int world_size(const Layout& layout) { return std::accumulate(layout.begin(), layout.end(), 0); }

inline std::string describe(const Layout& layout) {
  std::string text;
  for (const int ranks : layout) text += (text.empty() ? "" : "+") + std::to_string(ranks);
  return text;
}

inline GroupOptions quick_options() {
  GroupOptions options;
  options.secret = "test";
  options.timeout = std::chrono::seconds(60);
  options.init_timeout = std::chrono::seconds(60);
  options.chunk_bytes = 16'384;  // many rounds from little data
  return options;
}

inline void run(const Layout& layout, const std::function<void(Group&)>& body,
                const GroupOptions& options = quick_options()) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  int rank = 0;
  for (std::size_t host = 0; host < layout.size(); ++host) {
    for (int i = 0; i < layout[host]; ++i, ++rank) {
      threads.emplace_back([&, rank, host] {
        try {
          GroupOptions own = options;
          if (layout.size() > 1) own.host_id = "host" + std::to_string(host);
          Group group(store, rank, world_size(layout), own);
          body(group);
          group.barrier();
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace smdp::test
